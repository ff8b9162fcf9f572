"""The token under the pointer in a real browser: shown in the inspector beside the text, else in the tooltip."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.pages.harness import STORY, ScriptedTrial, Server
from tests.pages.strip_page import finished, show


def box(locator: Locator) -> dict[str, float]:
    found = locator.bounding_box()
    assert found is not None
    return {"x": found["x"], "y": found["y"], "width": found["width"], "height": found["height"]}


def overlap(one: dict[str, float], other: dict[str, float]) -> bool:
    is_beside = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
    is_apart = one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"]
    return not (is_beside or is_apart)


def test_beside_the_text_the_inspector_shows_the_token_under_the_pointer(page: Page, server: Server) -> None:
    trial = finished()
    tokens, title = show(page, server, trial), page.locator(".inspector h3")
    tokens.nth(4).click()
    page.mouse.move(5, 5)
    total = len(trial.steps)
    expect(title).to_have_text(f"Token 5 of {total}")
    tokens.nth(9).hover()
    expect(title).to_have_text(f"Preview · Token 10 of {total}")
    expect(page.locator(".tooltip")).to_be_hidden()
    expect(page.locator(".t.pinned")).to_have_count(1)
    expect(page.locator(".inspector .xray")).to_have_count(0)
    chosen = page.locator(".inspector tr.chosen .candidate")
    assert chosen.inner_text().strip() == trial.steps[9].text.strip()
    tokens.nth(4).hover()
    expect(title).to_have_text(f"Token 5 of {total}")
    tokens.nth(11).hover()
    page.mouse.move(5, 5)
    expect(title).to_have_text(f"Token 5 of {total}")
    tokens.nth(9).click()
    expect(title).to_have_text(f"Token 10 of {total}")


def test_what_shows_the_pinned_token_already_is_not_drawn_anew(page: Page, server: Server) -> None:
    tokens = show(page, server, finished())
    tokens.nth(4).click()
    sentence = page.locator(".inspector .sentence").element_handle()
    page.mouse.move(5, 5)
    tokens.nth(4).hover()
    page.mouse.move(5, 5)
    page.evaluate("new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
    assert sentence.evaluate("one => one.isConnected")


def test_a_preview_moves_nothing_on_the_page(page: Page, server: Server) -> None:
    trial = finished("Once upon a time there was a king.")
    trial.steps.records["num_kept"][2] = 1  # a shorter sentence
    tokens, inspector = show(page, server, trial), page.locator(".inspector")
    tokens.nth(4).click()
    page.mouse.move(5, 5)
    before = box(inspector), box(page.locator(".body"))
    for index in (2, 5, 3):
        tokens.nth(index).hover()
        expect(page.locator(".inspector h3")).to_have_text(f"Preview · Token {index + 1} of {len(trial.steps)}")
        assert box(page.locator(".body")) == before[1]
    page.mouse.move(5, 5)
    expect(page.locator(".inspector h3")).to_have_text(f"Token 5 of {len(trial.steps)}")
    assert (box(inspector), box(page.locator(".body"))) == before


@pytest.mark.parametrize("height", [900, 420])
def test_below_720_pixels_the_tooltip_covers_no_line_of_the_token(page: Page, server: Server, height: int) -> None:
    page.set_viewport_size({"width": 640, "height": height})
    tokens = show(page, server, finished(" ".join([STORY] * 2)))
    tooltip = page.locator(".tooltip")
    for index in (0, 20, 60, 100):
        tokens.nth(index).scroll_into_view_if_needed()
        tokens.nth(index).hover()
        expect(tooltip).to_be_visible()
        expect(tooltip.locator("tr.chosen")).to_be_visible()
        token = box(tokens.nth(index))
        assert not overlap(box(tooltip), {**token, "x": 0, "width": 640})
        page.mouse.move(5, 5)
        expect(tooltip).to_be_hidden()


def test_other_parts_of_the_page_hear_of_the_token_and_can_point_at_one(page: Page, server: Server) -> None:
    trial = finished()
    tokens = show(page, server, trial)
    first = len(trial.prompt_steps)
    page.evaluate(
        "window.events = []; addEventListener('logitbench.strip.hovered', ({ detail }) => events.push(detail))"
    )
    tokens.nth(3).hover()
    page.mouse.move(5, 5)
    page.wait_for_function("events.length === 2")
    assert page.evaluate("events") == [{"trial": "t", "place": first + 3}, {"trial": "t", "place": None}]


def test_a_pin_made_by_a_key_while_the_pointer_rests_is_no_preview(page: Page, server: Server) -> None:
    trial = finished()
    tokens, title = show(page, server, trial), page.locator(".inspector h3")
    tokens.nth(4).click()
    tokens.nth(9).hover()
    expect(title).to_have_text(re.compile("^Preview"))
    page.keyboard.press("ArrowRight")
    expect(title).to_have_text(f"Token 6 of {len(trial.steps)}")
    assert page.locator(".inspector").evaluate("inspector => inspector.style.height") == ""


def test_a_running_trial_is_previewed_while_tokens_come(page: Page, server: Server) -> None:
    trial = ScriptedTrial()
    tokens, title = show(page, server, trial), page.locator(".inspector h3")
    trial.go_on(5)
    tokens.nth(2).hover()
    expect(title).to_have_text("Preview · Token 3 of 5")
    expect(page.locator(".inspector .walk")).to_be_hidden()
    trial.go_on(1)
    expect(tokens).to_have_count(6)
    page.mouse.move(5, 5)
    expect(title).to_have_text("Inspector")


def test_a_key_right_after_a_click_shows_its_token_and_not_the_one_under_the_pointer(
    page: Page, server: Server
) -> None:
    trial = finished()
    tokens = show(page, server, trial)
    heading = page.locator(".inspector h3")
    tokens.nth(2).evaluate("""token => {
      // within one frame, as where the browser is busy
      token.dispatchEvent(new PointerEvent("pointerover", { pointerType: "mouse", bubbles: true }));
      token.click();
      token.closest(".text").dispatchEvent(new KeyboardEvent("keydown", { key: "Home", bubbles: true }));
    }""")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(heading).to_have_text(re.compile("^(Prompt token|Token) 1 of"))
