"""The What if panel in a real browser: the trial that ships, sampled again by llama.cpp's own chain."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import Locator, Page, WebSocket, expect

from engine.llama.frozen import Resampled, Resampler
from engine.workbench.resampling import sample_again
from engine.workbench.trials import StoredTrial
from tests.pages.harness import ScriptedTrial, Server

FLAT = {"Top-k": "0", "Top-p": "1", "Min-p": "0"}
HOSTILE_TEXTS = ("", "-1", "1e999", "101", "nonsense")


@pytest.fixture
def trial(server: Server) -> StoredTrial:
    return server.bench.record()


@pytest.fixture(scope="module")
def resampler() -> Iterator[Resampler]:
    made = Resampler()
    yield made
    made.close()


@pytest.fixture
def expected(resampler: Resampler, trial: StoredTrial) -> Callable[..., Resampled]:
    """What the chain draws with these changes, and the distribution of a step."""

    def of(shown: int | None = None, **changed: float) -> Resampled:
        return sample_again(resampler, trial, changed, shown).result

    return of


def show(page: Page, server: Server, **options: object) -> None:
    query = "&".join(f"{key}={value}" for key, value in options.items())
    page.goto(f"http://{server.host}/?trial=recorded&{query}")
    expect(page.locator(".ending")).not_to_be_empty()


def opened(page: Page, server: Server, **options: object) -> Locator:
    """The panel, open and answered for the first time."""
    show(page, server, **options)
    page.get_by_role("button", name="What if", exact=True).click()
    panel = page.get_by_role("region", name="What if")
    expect(panel.get_by_role("slider")).to_have_count(7)
    return panel


def field(panel: Locator, label: str) -> Locator:
    return panel.get_by_label(label, exact=True)


def differing(trial: StoredTrial, result: Resampled) -> list[int]:
    return [index for index, (new, old) in enumerate(zip(result.ids, trial.steps.ids, strict=True)) if new != old]


def marked(page: Page, name: str = "other") -> list[int]:
    """Indices of the generated tokens with this class."""
    found: list[int] = page.locator(".t.answer").evaluate_all(
        "(spans, name) => spans.flatMap((span, index) => (span.classList.contains(name) ? [index] : []))", name
    )
    return found


def test_a_moved_slider_says_what_would_differ_first_and_marks_all_that_would(
    page: Page, server: Server, trial: StoredTrial, expected: Callable[..., Resampled]
) -> None:
    panel = opened(page, server)
    field(panel, "Min-p, slider").focus()
    for _ in range(25):  # 0.05 to 0.3
        page.keyboard.press("ArrowRight")
    expect(field(panel, "Min-p")).to_have_value("0.3")
    result = expected(min_p=0.3)
    first, *rest = differing(trial, result)
    text = trial.steps.vocabulary.text
    would, was = text(result.ids[first]), text(trial.steps.ids[first])
    expected_text = f"At min-p 0.3 the {first + 1}th token would be {would} instead of {was}."
    expect(panel.get_by_role("status")).to_have_text(expected_text)
    expect(panel).to_contain_text(f"{len(rest) + 1} of 128 tokens would differ")
    assert marked(page) == [first, *rest]
    assert marked(page, "first-other") == [first]
    label = page.locator(".t.answer").nth(first).get_attribute("aria-label")
    assert label is not None and label.endswith(f", would be {would.strip()}")


def test_the_parameters_of_the_run_change_nothing_and_reset_returns_to_them(
    page: Page, server: Server, trial: StoredTrial
) -> None:
    panel = opened(page, server)
    expect(panel.get_by_role("status")).to_contain_text("Move a slider")
    own = {"Temperature": "0.8", "Top-k": "40", "Top-p": "0.95", "Min-p": "0.05", "Repeat penalty": "1"}
    for label, value in own.items():
        expect(field(panel, label)).to_have_value(value)
    reset = panel.get_by_role("button", name="Reset")
    expect(reset).to_be_disabled()
    field(panel, "Top-k").fill("39")
    expect(panel.get_by_role("status")).to_have_text("Nothing changes at top-k 39.")
    field(panel, "Temperature").fill("1.4")
    expect(page.locator(".t.other").first).to_be_visible()
    reset.click()
    expect(page.locator(".t.other")).to_have_count(0)
    for label, value in own.items():
        expect(field(panel, label)).to_have_value(value)
    expect(panel.get_by_role("status")).to_contain_text("Move a slider")


def test_the_pinned_token_shows_its_new_distribution(
    page: Page, server: Server, trial: StoredTrial, expected: Callable[..., Resampled]
) -> None:
    panel = opened(page, server)
    field(panel, "Temperature").fill("1.3")
    field(panel, "Top-k").fill("3")
    for index in (3, 9):
        page.locator(".t.answer").nth(index).click()
        page.mouse.move(5, 5)
        result = expected(index, temperature=1.3, top_k=3)
        inspector = page.locator(".inspector")
        expect(inspector.locator("thead th").nth(3)).to_have_text("what if")
        expect(inspector.locator(".sentence")).to_contain_text("At temperature 1.3 and top-k 3 the draw gives")
        chosen = trial.steps.vocabulary.text(result.ids[index])
        expect(inspector.locator("tr.chosen .candidate")).to_have_text(chosen)
        p_final = memoryview(result.p_final).cast("f").tolist()
        shown = inspector.locator("tbody tr:not(.remaining) td:nth-child(4)").all_text_contents()[:10]
        assert shown == [f"{p:.3f}" if p else "cut" for p in p_final[:10]]
    panel.get_by_role("button", name="Reset").click()
    expect(page.locator(".candidates thead th").nth(3)).to_have_text("after sampling")


def test_a_hovered_token_is_shown_as_it_would_be(page: Page, server: Server, trial: StoredTrial) -> None:
    panel = opened(page, server)
    field(panel, "Temperature").fill("1.3")
    page.locator(".t.answer").nth(20).hover()
    expect(page.locator(".inspector h3")).to_have_text("Preview · Token 21 of 128")
    expect(page.locator(".inspector .sentence")).to_contain_text("At temperature 1.3 the draw gives")


def test_where_the_candidates_are_too_few_it_says_so_and_offers_the_model(
    page: Page, server: Server, trial: StoredTrial
) -> None:
    panel = opened(page, server, asks=1)
    for label, value in FLAT.items():
        field(panel, label).fill(value)
    expect(panel.get_by_role("status")).to_have_text("At these values the 256 recorded candidates are too few to tell.")
    expect(panel).to_contain_text("Of 128 tokens 128 are open, first the 1st token.")
    assert marked(page, "open") == [*range(128)]
    expect(panel.get_by_role("button", name="Run on from here")).to_be_hidden()
    panel.get_by_role("button", name="1st token").click()
    page.mouse.move(5, 5)
    expect(page.locator(".inspector .sentence")).to_contain_text("too few to tell what is drawn here")
    expect(page.locator(".inspector tr.chosen")).to_have_count(0)
    panel.get_by_role("button", name="Ask the model").click()
    wanted = {"top_k": 0, "top_p": 1, "min_p": 0}
    asked = {"action": "resample", "trial": "recorded", "step": 0, "sampling": wanted}
    assert page.evaluate("window.ended") == [["asked", asked]]


def test_run_on_from_here_asks_for_a_trial_from_the_first_token_that_differs(
    page: Page, server: Server, trial: StoredTrial, expected: Callable[..., Resampled]
) -> None:
    panel = opened(page, server, asks=1)
    run_on = panel.get_by_role("button", name="Run on from here")
    expect(run_on).to_be_hidden()
    field(panel, "Min-p").fill("0.3")
    run_on.click()
    first = differing(trial, expected(min_p=0.3))[0]
    assert page.evaluate("window.ended.at(-1)") == [
        "asked", {"action": "resample", "trial": "recorded", "step": first, "sampling": {"min_p": 0.3}},
    ]  # fmt: skip
    page.evaluate("window.update({ asks: false })")
    field(panel, "Min-p").fill("0.31")
    expect(run_on).to_be_hidden()


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_a_number_that_cannot_be_used_is_reported_and_not_sent(
    page: Page, server: Server, trial: StoredTrial, text: str
) -> None:
    panel = opened(page, server)
    opened_anew: list[WebSocket] = []
    page.on("websocket", lambda socket: opened_anew.append(socket))
    temperature = field(panel, "Temperature")
    temperature.evaluate("(field, text) => { field.value = text; field.dispatchEvent(new Event('input')); }", text)
    expect(panel.get_by_role("status")).to_have_text("Temperature takes a number from 0 to 100.")
    expect(temperature).to_have_attribute("aria-invalid", "true")
    expect(page.locator(".t.other")).to_have_count(0)
    temperature.fill("1.4")
    expect(panel.get_by_role("status")).to_contain_text("At temperature 1.4 the")
    assert opened_anew == []  # a request that cannot be read closes the socket


def test_a_chain_that_cannot_be_sampled_again_is_refused_with_the_reason(page: Page, server: Server) -> None:
    trial = server.bench.record()
    trial.draft = replace(trial.draft, sampling=replace(trial.draft.sampling, mirostat=2))
    show(page, server)
    page.get_by_role("button", name="What if", exact=True).click()
    panel = page.get_by_role("region", name="What if")
    expect(panel.get_by_role("status")).to_contain_text("Steps sampled with mirostat cannot be sampled again")
    expect(panel.get_by_role("slider")).to_have_count(0)


def test_a_parameter_that_the_chain_leaves_out_cannot_be_moved(page: Page, server: Server) -> None:
    trial = server.bench.record()
    samplers = ("top_k", "temperature")
    trial.draft = replace(trial.draft, sampling=replace(trial.draft.sampling, samplers=samplers))
    panel = opened(page, server)
    # the tokens that ship were drawn by another chain
    expect(panel.get_by_role("status")).to_contain_text("At the parameters of this run the")
    for label, is_there in (("Temperature", True), ("Top-k", True), ("Top-p", False), ("Repeat penalty", False)):
        for control in (label, f"{label}, slider"):
            expect(field(panel, control)).to_be_enabled(enabled=is_there)


def test_it_opens_only_after_the_end_and_not_for_a_prompt_alone(page: Page, server: Server) -> None:
    server.bench.trials["t"] = running = ScriptedTrial()
    page.goto(f"http://{server.host}/?trial=t")
    running.go_on(5)
    expect(page.locator(".t.answer")).to_have_count(5)
    toggle = page.get_by_role("button", name="What if", exact=True)
    expect(toggle).to_be_hidden()
    running.finish()
    toggle.click()
    expect(page.get_by_role("region", name="What if").get_by_role("slider")).to_have_count(7)
    server.bench.trials["t"] = scored = ScriptedTrial(scored=True)
    scored.finish()
    page.reload()
    expect(page.locator(".ending")).not_to_be_empty()
    expect(toggle).to_be_hidden()


def test_keyboard_alone_opens_moves_and_closes_it(page: Page, server: Server, trial: StoredTrial) -> None:
    show(page, server)
    toggle = page.get_by_role("button", name="What if", exact=True)
    toggle.focus()
    page.keyboard.press("Enter")
    expect(toggle).to_have_attribute("aria-expanded", "true")
    panel = page.get_by_role("region", name="What if")
    expect(panel.get_by_role("status")).to_contain_text("Move a slider")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.getElementById('host').shadowRoot.activeElement?.type") == "range":
            break
    page.keyboard.press("End")
    expect(field(panel, "Temperature")).to_have_value("2")
    expect(panel.get_by_role("status")).to_contain_text("At temperature 2 the")
    top_k = field(panel, "Top-k, slider")
    top_k.focus()
    page.keyboard.press("End")
    expect(field(panel, "Top-k")).to_have_value("0")
    expect(top_k).to_have_attribute("aria-valuetext", "0, off")
    page.keyboard.press("w")
    expect(panel).to_be_hidden()
    expect(page.locator(".t.other")).to_have_count(0)


def test_the_address_keeps_the_sliders_until_another_trial_is_shown(
    page: Page, server: Server, trial: StoredTrial
) -> None:
    panel = opened(page, server)
    expect(page).to_have_url(re.compile("what_if=$"))
    field(panel, "Presence penalty").fill("0.75")
    field(panel, "Top-p").fill("0.9")
    expect(page).to_have_url(re.compile("what_if=top_p%3A0.9%2Cpresence_penalty%3A0.75$"))
    before = marked(page)
    page.reload()
    expect(panel.get_by_role("status")).to_contain_text("At top-p 0.9 and presence penalty 0.75 the")
    expect(field(panel, "Presence penalty")).to_have_value("0.75")
    assert marked(page) == before
    server.bench.trials["t"] = other = ScriptedTrial()
    other.go_on()
    other.finish()
    page.evaluate("window.update({ trial: 't' })")
    expect(page.locator(".t.answer")).to_have_count(len(other.steps))
    expect(panel).to_be_hidden()
    expect(page).not_to_have_url(re.compile("what_if"))


@pytest.mark.parametrize("text", ["", "x", "temperature", "temperature:x", "mirostat:2,seed:1", ":,:", "a" * 5000])
def test_an_address_that_means_nothing_opens_the_parameters_of_the_run(
    page: Page, server: Server, trial: StoredTrial, text: str
) -> None:
    show(page, server, what_if=text)
    panel = page.get_by_role("region", name="What if")
    expect(panel.get_by_role("status")).to_contain_text("Move a slider")
    expect(field(panel, "Temperature")).to_have_value("0.8")


def test_a_value_out_of_range_in_the_address_is_reported(page: Page, server: Server, trial: StoredTrial) -> None:
    show(page, server, what_if="temperature:500")
    panel = page.get_by_role("region", name="What if")
    expect(panel.get_by_role("status")).to_have_text("Temperature takes a number from 0 to 100.")


def test_a_fast_drag_ends_with_what_belongs_to_where_it_ended(
    page: Page, server: Server, trial: StoredTrial, expected: Callable[..., Resampled]
) -> None:
    panel = opened(page, server)
    field(panel, "Temperature, slider").evaluate(
        """(slider) => {
          for (let at = 0; at < 200; at++) {
            slider.value = 0.05 * (at % 40);
            slider.dispatchEvent(new Event("input"));
          }
        }"""
    )
    expect(panel.get_by_role("status")).to_contain_text("At temperature 1.95 the")
    expect(page.locator(".t.other").first).to_be_visible()
    assert marked(page) == differing(trial, expected(temperature=1.95))


def test_it_goes_on_after_the_server_came_back(page: Page, server: Server, trial: StoredTrial) -> None:
    panel = opened(page, server)
    server.stop()
    field(panel, "Temperature").fill("1.4")
    expect(panel).to_contain_text("The workbench does not answer")
    server.start()
    field(panel, "Temperature").fill("1.5")
    expect(panel.get_by_role("status")).to_contain_text("At temperature 1.5 the")
    words = page.locator(".verdict .quoted").all_text_contents()
    assert words and not any(re.search(r"#\d", word) for word in words)
