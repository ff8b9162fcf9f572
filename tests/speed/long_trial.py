"""A trial of 4,000 tokens in a real browser: how long it takes to open, the longest task of scrolling and hovering."""

import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from engine.history import History
from tests.engine.history.trial_maker import make_trial, with_stages
from tests.speed.browser import READY_MS, app, chromium
from tests.speed.common import Row, at_most, model

ROUNDS = 5
NUM_SHORT = 20
SHAPE = ""
"""The model that ships, or another: it answers nothing here."""
NUM_TOKENS, NUM_CANDIDATES = 4_000, 256
OPEN_S, LONGEST_MS = 1.0, 50
WHEEL_PX, NUM_WHEELS = 160, 120
NUM_HOVERS = 300
SETTLE_MS = 1_000
NONE = "0 where none was over 50 ms, below which a browser does not tell of a task"

WATCH = """
  window.longTasks = [];
  new PerformanceObserver((list) => {
    for (const task of list.getEntries()) longTasks.push(task.duration);
  }).observe({ type: "longtask" });
"""
OPEN = """([id, title]) => new Promise((resolve) => {
  const began = performance.now();
  [...document.querySelectorAll("button")].find((button) => button.textContent.includes(title)).click();
  const strip = (host) => host.shadowRoot?.querySelector(`.root[data-trial="${id}"][aria-busy=false] .ending`);
  const look = () => {
    if (![...document.querySelectorAll("*")].some((host) => strip(host))) return requestAnimationFrame(look);
    requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - began)));
  };
  look();
})"""
PAINTED = "new Promise((resolve) => requestAnimationFrame(() => setTimeout(() => resolve(performance.now()))))"


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Seconds from the address to all tokens painted, and the longest task of scrolling and of hovering."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "history.duckdb")
        trials = [with_stages(make_trial(count, NUM_CANDIDATES)) for count in (NUM_TOKENS, NUM_SHORT)]
        with History.open(file) as history:
            for trial in trials:
                history.record(replace(trial, prompt=title(len(trial.completion.steps)))).result()
        with (
            app(model(shape) if shape else "", {"LOGITBENCH_HISTORY": str(file)}) as address,
            sync_playwright() as playwright,
        ):
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            rows = rows_of(browser, address, [trial.id for trial in trials], num_rounds)
            browser.close()
    return rows


def rows_of(browser: Browser, address: str, ids: list[str], num_rounds: int) -> list[Row]:
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.add_init_script(WATCH)
    long, short = (f"{address}/?trial={id}" for id in ids)
    first_s = opening_s(page, long, NUM_TOKENS)
    opened_s = [(opening_s(page, long, NUM_TOKENS), opening_s(page, short, NUM_SHORT)) for _ in range(num_rounds)]
    from_list_s = [from_list(page, ids[0], NUM_TOKENS) for _ in range(num_rounds) if from_list(page, ids[1], NUM_SHORT)]
    from_list(page, ids[0], NUM_TOKENS)
    opening_ms = longest_ms(page)
    long_s, short_s = (median(seconds) for seconds in zip(*opened_s, strict=True))
    beside = f"{short_s:.2f} s with {NUM_SHORT} tokens; {first_s:.2f} s with nothing in the browser's cache"
    return [
        at_most(f"a trial of {NUM_TOKENS:,} tokens opens from the list", median(from_list_s), OPEN_S, "", "s"),
        Row("the page loads with that trial", long_s, "s", beside=beside),
        Row("longest task while it opens", opening_ms, "ms"),
        at_most("longest task while it is scrolled", scrolled_ms(page), LONGEST_MS, NONE, "ms"),
        at_most("longest task while tokens are hovered", hovered_ms(page), LONGEST_MS, NONE, "ms"),
    ]


def title(num_tokens: int) -> str:
    return f"Trial of {num_tokens}"


def from_list(page: Page, id: str, num_tokens: int) -> float:
    """Open a trial from the list of recent ones; the seconds until all its tokens are painted."""
    page.get_by_role("button", name=title(num_tokens)).first.wait_for(timeout=READY_MS)
    page.wait_for_timeout(SETTLE_MS)
    opened_ms: float = page.evaluate(OPEN, [id, title(num_tokens)])
    assert page.locator(".t.answer").count() == num_tokens
    return opened_ms / 1e3


def opening_s(page: Page, url: str, num_tokens: int) -> float:
    page.goto("about:blank")
    page.goto(url, wait_until="commit")
    page.locator(".root[aria-busy=false] .ending").wait_for(timeout=READY_MS)
    painted_ms: float = page.evaluate(PAINTED)
    assert page.locator(".t.answer").count() == num_tokens
    return painted_ms / 1e3


def longest_ms(page: Page) -> float:
    """The longest task since this was last asked; 0 where the browser reported none."""
    page.wait_for_timeout(500)
    found: list[float] = page.evaluate("longTasks.splice(0)")
    return max(found, default=0.0)


def scrolled_ms(page: Page) -> float:
    """From the top of the text to its end and back."""
    box = text_box(page)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    longest_ms(page)
    for direction in (1, -1):
        for _ in range(NUM_WHEELS):
            page.mouse.wheel(0, direction * WHEEL_PX)
            time.sleep(0.01)
    return longest_ms(page)


def hovered_ms(page: Page) -> float:
    """Along the lines of the text, a token or two at a time."""
    box = text_box(page)
    longest_ms(page)
    for index in range(NUM_HOVERS):
        row, column = divmod(index * 37, int(box["width"]) - 40)
        page.mouse.move(box["x"] + 20 + column, box["y"] + 12 + row * 26 % (box["height"] - 24))
    return longest_ms(page)


def text_box(page: Page) -> dict[str, Any]:
    text = page.locator(".text")
    text.scroll_into_view_if_needed()
    box = text.bounding_box()
    assert box is not None
    return dict(box)
