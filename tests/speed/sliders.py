"""Sliders of What if: a run sampled again in the engine, and in a browser from a moved slider to painted tokens."""

import time
from dataclasses import replace

import numpy as np
from playwright.sync_api import Page, sync_playwright

from engine import Completion, Pool, Sampling
from engine.llama.frozen import FrozenSteps, Resampler
from tests.speed.browser import READY_MS, app, chromium
from tests.speed.common import Row, at_most, model, prompts, sampling, warm

ROUNDS = 100
SHAPE = "llama-1.1b-32k"
NUM_STEPS, NUM_CANDIDATES, N_CTX_OF_RUN = 500, 256, 1024
MOST_RUNS = 10
GOAL_ENGINE_MS, GOAL_PAINTED_MS = 50, 100
TEMPERATURES = (0.5, 1.5)
MOVE = """(slider, value) => new Promise((resolve) => {
  const verdict = slider.getRootNode().querySelector(".verdict");
  const observer = new MutationObserver(() => {
    observer.disconnect();
    requestAnimationFrame(() => {
      const channel = new MessageChannel();
      channel.port1.onmessage = () => resolve(performance.now() - began);
      channel.port2.postMessage(null);  // delivered after the frame has been painted
    });
  });
  observer.observe(verdict, { childList: true, characterData: true, subtree: true });
  const began = performance.now();
  slider.value = value;
  slider.dispatchEvent(new Event("input"));
})"""


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """95th percentile over the moves of one slider, the first left out."""
    path = model(shape)
    with warm(Pool(path, parallel=1, n_ctx=N_CTX_OF_RUN)) as pool:
        chain = sampling(pool)
        (ids,) = prompts(1, most=len(pool.vocabulary))
        run = pool.submit(ids, chain, max_tokens=NUM_STEPS, top_k=NUM_CANDIDATES).result()
    return [_row("sampled again", _in_engine(run, chain, num_rounds), GOAL_ENGINE_MS), _painted(path, num_rounds)]


def _row(what: str, all_ms: list[float], goal: float) -> Row:
    beside = f"median {np.median(all_ms):.0f} ms, {len(all_ms)} moves, {NUM_CANDIDATES} candidates"
    return at_most(
        f"slider moved to {NUM_STEPS} steps {what}, p95", float(np.percentile(all_ms, 95)), goal, beside, "ms"
    )


def _in_engine(run: Completion, chain: Sampling, num_rounds: int) -> list[float]:
    resampler, all_ms = Resampler(), []
    for temperature in np.linspace(*TEMPERATURES, num_rounds + 1).tolist():
        changed = replace(chain, temperature=temperature)
        began = time.perf_counter()
        resampler.resample("run", lambda: FrozenSteps.of(run.steps, slice(None)), changed, NUM_STEPS // 2)
        all_ms.append(1e3 * (time.perf_counter() - began))
    resampler.close()
    return all_ms[1:]


def _painted(path: str, num_rounds: int) -> Row:
    with app(path) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(READY_MS)
        page.goto(address)
        _generate(page)
        page.get_by_role("button", name="What if", exact=True).click()
        slider = page.get_by_label("Temperature, slider", exact=True)
        values = np.linspace(*TEMPERATURES, 21).round(2).tolist()  # the slider's own steps
        moves = [values[1 + number % 20] for number in range(num_rounds + 1)]
        all_ms: list[float] = [slider.evaluate(MOVE, value) for value in moves]
        browser.close()
    return _row("painted", all_ms[1:], GOAL_PAINTED_MS)


def _generate(page: Page) -> None:
    """Run the prompt that stands there, again where the model ended the text before as many tokens as are measured."""
    run, tokens = page.locator(".st-key-do_run button"), page.locator(".t.answer")
    page.wait_for_function("document.querySelector('.st-key-do_run button')?.disabled === false")
    length = page.get_by_label("Max tokens", exact=True)
    length.fill(str(NUM_STEPS))
    length.press("Enter")
    for _ in range(MOST_RUNS):
        tokens.first.evaluate("span => { span.dataset.before = ''; }")
        run.click()
        page.locator(".t.answer[data-before]").wait_for(state="detached")
        page.locator(".ending:not(:empty)").wait_for()
        if tokens.count() == NUM_STEPS:
            return
    raise SystemExit(f"None of {MOST_RUNS} runs had {NUM_STEPS} tokens.")
