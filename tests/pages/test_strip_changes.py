"""The strip with a comparison: the mode Change, the figures of a token, and the list that leads to its tokens."""

import math
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from engine import palette
from tests.pages.harness import STORY, ScriptedTrial, Server
from tests.pages.strip_page import finished, show

OTHER = "story-Q4_0.gguf"
HOSTILE = '<img src=x onerror="window.hacked=1">\u202e\n'


def change_of(trial: ScriptedTrial, *, seed: int = 1, **changes: Any) -> dict[str, Any]:
    """Return a comparison with changes from nothing to beyond the last band, up and down."""
    steps = trial.steps if len(trial.steps) else trial.prompt_steps
    logprob = steps.records["logprob"][0 if len(trial.steps) else 1 :]
    random = np.random.default_rng(seed)
    sizes = random.choice([0.0, *palette.CHANGE_NATS, 3.0], len(logprob)) * random.uniform(0.9, 1.1, len(logprob))
    other = logprob + sizes * random.choice([-1, 1], len(logprob))
    order = np.argsort(-np.abs(other - logprob), kind="stable")[:10].tolist()
    rows = [{"index": index, "best": " old", "other_best": " old" if index % 2 else " great"} for index in order]
    return {
        "key": "one",
        "other": OTHER,
        "is_prompt": not len(trial.steps),
        "logprob": logprob.tolist(),
        "other_logprob": other.tolist(),
        "kl": np.abs(other - logprob).tolist(),
        "first_flip": 7,
        "rows": rows,
    } | changes


def compare(page: Page, change: dict[str, Any] | None) -> None:
    page.evaluate("change => window.update({ change })", change)


@pytest.fixture
def trial(page: Page, server: Server) -> ScriptedTrial:
    trial = finished()
    expect(show(page, server, trial)).to_have_count(len(trial.steps))
    expect(page.locator(".ending")).not_to_be_empty()
    return trial


def pressed(page: Page) -> list[str]:
    return page.locator(".choice button[aria-pressed=true]").all_inner_texts()[:1]


def test_change_is_there_only_with_a_comparison(page: Page, trial: ScriptedTrial) -> None:
    button = page.get_by_role("button", name="Change", exact=True)
    expect(button).to_be_hidden()
    compare(page, change_of(trial))
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".legend")).to_contain_text("change, nats")
    compare(page, None)
    expect(button).to_be_hidden()
    assert pressed(page) == ["Surprise"]
    expect(page.locator(".changes")).to_be_hidden()
    assert page.locator(".rose, .fell").count() == 0


def test_the_mode_that_a_reader_chooses_stays_until_another_comparison(page: Page, trial: ScriptedTrial) -> None:
    compare(page, change_of(trial))
    page.get_by_role("button", name="Time", exact=True).click()
    compare(page, change_of(trial))
    assert pressed(page) == ["Time"]
    compare(page, change_of(trial, key="two"))
    assert pressed(page) == ["Change"]


def test_tokens_are_blue_by_size_and_lined_by_direction(page: Page, trial: ScriptedTrial) -> None:
    change = change_of(trial)
    compare(page, change)
    tokens = page.locator(".t.answer")
    sizes = np.array(change["other_logprob"]) - np.array(change["logprob"])
    bands = tokens.evaluate_all("spans => spans.map(span => span.band)")
    assert bands == [sum(abs(size) > limit for limit in palette.CHANGE_NATS) for size in sizes]
    assert set(bands) >= {0, 3, 6}
    marks = tokens.evaluate_all(
        "spans => spans.map(span => ['rose', 'fell'].map(name => span.classList.contains(name)))"
    )
    least = palette.CHANGE_NATS[0]
    assert marks == [[bool(size >= least), bool(size <= -least)] for size in sizes]
    strongest = tokens.nth(bands.index(6)).evaluate("span => getComputedStyle(span).backgroundColor")
    red, green, blue = (int(part) for part in strongest.removeprefix("rgb(").removesuffix(")").split(","))
    assert f"#{red:02X}{green:02X}{blue:02X}" == palette.QUANTITY["light"].backgrounds[5]
    lines = tokens.evaluate_all("spans => spans.map(span => getComputedStyle(span).boxShadow)")
    assert all(("2px" in line) == any(mark) for line, mark in zip(lines, marks, strict=True))
    assert page.locator(".t.prompt.rose, .t.prompt.fell").count() == 0


@pytest.mark.parametrize(("unit", "scale"), [("p", 1), ("nats", 1), ("bits", math.log(2))])
def test_a_tokens_figures_are_in_the_inspector_in_the_unit(
    page: Page, trial: ScriptedTrial, unit: str, scale: float
) -> None:
    change = change_of(trial)
    compare(page, change)
    page.locator(".bar-row").get_by_role("button", name=unit, exact=True).click()
    index = change["rows"][0]["index"]
    page.locator(".t.answer").nth(index).click()
    size = (change["other_logprob"][index] - change["logprob"][index]) / scale
    facts = page.locator(".inspector .facts").first
    named = "bits" if unit == "bits" else "nats"
    expect(facts).to_contain_text(f"change{'−' if size < 0 else '+'}{abs(size):.2f} {named}")
    expect(facts).to_contain_text("KL")
    expect(facts).to_contain_text("other p")
    page.locator(".t.prompt").last.click()
    expect(page.locator(".inspector .facts").first).not_to_contain_text("change")


def test_the_list_has_the_most_changed_first_and_leads_to_its_tokens(page: Page, trial: ScriptedTrial) -> None:
    change = change_of(trial)
    compare(page, change)
    rows = page.locator(".changes tbody tr")
    expect(rows).to_have_count(10)
    expect(page.locator(".changes h3")).to_have_text(f"Most changed by {OTHER}")
    expect(page.get_by_role("region", name=f"Most changed by {OTHER}")).to_be_visible()
    index = change["rows"][3]["index"]
    rows.nth(3).get_by_role("button").click()
    expect(page.locator(".inspector h3")).to_have_text(f"Token {index + 1} of {len(trial.steps)}")
    expect(page.locator(".t.answer").nth(index)).to_have_attribute("aria-selected", "true")
    size = change["other_logprob"][index] - change["logprob"][index]
    expect(rows.nth(3)).to_contain_text(f"{'−' if size < 0 else '+'}{abs(size):.2f}")
    best = rows.nth(3).locator(".best").inner_text().split()
    assert best == (["old"] if index % 2 else ["old", "→", "great"])


def test_the_first_flip_is_a_link(page: Page, trial: ScriptedTrial) -> None:
    compare(page, change_of(trial))
    page.get_by_role("button", name="First greedy flip: token 8").click()
    expect(page.locator(".inspector h3")).to_have_text(f"Token 8 of {len(trial.steps)}")
    compare(page, change_of(trial, key="two", first_flip=None))
    expect(page.get_by_role("button", name="First greedy flip")).to_be_hidden()


def test_a_row_is_reached_and_opened_with_the_keyboard(page: Page, trial: ScriptedTrial) -> None:
    change = change_of(trial)
    compare(page, change)
    page.locator(".changes .jump").first.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    index = change["rows"][1]["index"]
    expect(page.locator(".inspector h3")).to_have_text(f"Token {index + 1} of {len(trial.steps)}")


def test_the_key_for_modes_passes_change_only_with_a_comparison(page: Page, trial: ScriptedTrial) -> None:
    page.locator(".text").focus()
    seen = []
    for _ in range(3):
        page.keyboard.press("m")
        seen += pressed(page)
    assert seen == ["Uncertainty", "Time", "Surprise"]
    compare(page, change_of(trial))
    page.keyboard.press("m")
    assert pressed(page) == ["Surprise"]


def test_texts_of_models_stay_texts(page: Page, trial: ScriptedTrial) -> None:
    change = change_of(trial, other=HOSTILE)
    change["rows"] = [{"index": 3, "best": HOSTILE, "other_best": "</td><script>window.hacked=1</script>"}]
    compare(page, change)
    expect(page.locator(".changes tbody tr")).to_have_count(1)
    expect(page.locator(".changes")).to_contain_text('<img src=x onerror="window.hacked=1">')
    assert page.evaluate("window.hacked") is None
    assert page.locator(".changes img, .changes script").count() == 0


def test_a_token_that_the_other_model_rules_out(page: Page, trial: ScriptedTrial) -> None:
    change = change_of(trial)
    change["other_logprob"][3], change["kl"][3] = None, None
    change["rows"] = [{"index": 3, "best": " a", "other_best": " a"}]
    compare(page, change)
    cells = page.locator(".changes tbody td").all_inner_texts()
    assert cells[1] == "−∞" and cells[3] == "∞" and cells[2].endswith("→ 0\u202f%")
    assert page.locator(".t.answer").nth(3).evaluate("span => span.band") == 6


def test_a_scored_prompt_is_compared_from_its_second_token(page: Page, server: Server) -> None:
    trial = ScriptedTrial("", STORY, scored=True)
    trial.finish("Only the prompt was scored.")
    show(page, server, trial)
    expect(page.locator(".ending")).not_to_be_empty()
    change = change_of(trial)
    compare(page, change)
    index = change["rows"][0]["index"]
    page.locator(".changes .jump").first.click()
    expect(page.locator(".inspector h3")).to_have_text(f"Prompt token {index + 2} of {len(trial.prompt_steps)}")
    bands = page.locator(".t.prompt").evaluate_all("spans => spans.map(span => span.band)")
    sizes = np.abs(np.array(change["other_logprob"]) - np.array(change["logprob"]))
    assert bands == [0, *(sum(size > limit for limit in palette.CHANGE_NATS) for size in sizes)]


def test_a_comparison_is_there_after_a_reload(page: Page, server: Server, trial: ScriptedTrial) -> None:
    """The tokens come after the data: what is marked waits for them."""
    page.goto("about:blank")
    show(page, server, trial)
    page.wait_for_function("() => window.unmount")
    compare(page, change_of(trial))
    expect(page.locator(".changes tbody tr")).to_have_count(10)
    assert page.locator(".rose").count() > 0 and pressed(page) == ["Change"]


@pytest.mark.parametrize("width", [1400, 420])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_list_fits_its_room(page: Page, server: Server, theme: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    trial = finished()
    expect(show(page, server, trial, theme=theme)).to_have_count(len(trial.steps))
    compare(page, change_of(trial))
    expect(page.locator(".changes tbody tr")).to_have_count(10)
    room, wide = page.locator(".changes .list").evaluate("list => [list.clientWidth, list.scrollWidth]")
    assert wide <= room
