"""The strip by keyboard and for a screen reader, in a real browser: names, order of the focus, what is announced."""

import re

import pytest
from playwright.sync_api import Page, expect

from engine.step_parts import FORCED
from tests.pages.harness import ScriptedTrial, Server
from tests.pages.strip_page import finished, show

NAMELESS = re.compile(r"- (button|link|textbox|slider|checkbox|option|listbox|group|dialog)( \[[^\]]*\])*:?$")


def focused(page: Page) -> str:
    """Name of the part that has the focus, within the component."""
    name: str = page.evaluate(
        "(() => { const at = host.shadowRoot.activeElement;"
        " return at ? (at.getAttribute('aria-label') ?? at.textContent) : ''; })()"
    )
    return name


def test_the_focus_goes_from_the_colours_to_the_text_the_playback_and_the_inspector(page: Page, server: Server) -> None:
    show(page, server, finished())
    expect(page.locator(".chips .chip")).to_have_count(5)
    order: list[str] = []
    while len(order) < 60 and not (order and not order[-1]):
        page.keyboard.press("Tab")
        order.append(focused(page))
    stops = [
        "Surprise", "p", "Keys", "Tokens", "Play at the measured pace (space)", "Position in the generation", "1×",
        "Previous token (left arrow)", "Unpin (Esc)",
    ]  # fmt: skip
    assert [name for name in order if name in stops] == stops


def test_every_part_that_can_be_used_has_a_name(page: Page, server: Server) -> None:
    show(page, server, finished("Once upon a time  there\n\n was 🐈 a king"))
    expect(page.locator(".ending")).not_to_be_empty()
    lines = [line.strip() for line in page.locator("body").aria_snapshot().splitlines()]
    assert [line for line in lines if NAMELESS.match(line)] == []
    names = page.locator(".t").evaluate_all("spans => spans.map(span => span.ariaLabel)")
    assert all(re.match(r"\S", name) for name in names)
    assert any(name.startswith("↵") for name in names)


def test_an_option_says_whether_a_token_is_of_the_prompt_or_forced(page: Page, server: Server) -> None:
    trial = finished()
    trial.steps.records["flags"][2] |= FORCED
    tokens = show(page, server, trial)
    expect(tokens.nth(2)).to_have_attribute("aria-label", re.compile(r"rank \d+, forced$"))
    expect(tokens.nth(3)).to_have_attribute("aria-label", re.compile(r"rank \d+$"))
    expect(page.locator(".t.prompt").nth(1)).to_have_attribute("aria-label", "Once, of the prompt")


def test_waiting_and_the_end_are_announced_but_no_figure_that_runs(page: Page, server: Server) -> None:
    trial = ScriptedTrial()
    trial.state = {"state": "queued", "queue_position": 2}
    show(page, server, trial)
    figures = page.locator(".figures")
    expect(figures).to_have_attribute("aria-live", "polite")
    trial.tell(state="running")
    trial.go_on(3)
    expect(figures).to_contain_text("tok/s")
    expect(figures).to_have_attribute("aria-live", "off")
    trial.finish("Stopped at the 3-token limit.")
    expect(page.get_by_role("status").filter(has_text="Stopped at the 3-token limit.")).to_be_visible()


def test_a_token_under_the_pointer_is_not_announced(page: Page, server: Server) -> None:
    tokens = show(page, server, finished())
    content = page.locator(".inspector .content")
    tokens.nth(4).click()
    expect(content).to_have_attribute("aria-live", "polite")
    tokens.nth(9).hover()
    expect(page.locator(".inspector h3")).to_have_text(re.compile("^Preview"))
    expect(content).to_have_attribute("aria-live", "off")


@pytest.mark.parametrize("width", [700, 480, 320])
def test_a_narrow_page_is_never_scrolled_sideways(page: Page, server: Server, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    show(page, server, finished())
    expect(page.locator(".ending")).not_to_be_empty()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("button", name="Keys").click()
    box = page.get_by_role("dialog").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
