"""Strips beside each other in a real browser: what they share is marked, and the token at which they part is pinned."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.pages.harness import ScriptedTrial, Server
from tests.pages.strip_page import show


@pytest.fixture
def page(page: Page) -> Page:
    """As narrow as one of two columns."""
    page.set_viewport_size({"width": 700, "height": 900})
    return page


def ended() -> ScriptedTrial:
    trial = ScriptedTrial()
    trial.go_on()
    trial.finish()
    return trial


def test_the_common_start_is_marked_and_the_parting_pinned(page: Page, server: Server) -> None:
    tokens = show(page, server, ended(), shared=5)
    expect(page.locator(".parting")).to_have_count(1)
    expect(page.locator(".shared")).to_have_count(5)
    for index in range(5):
        expect(tokens.nth(index)).to_have_class(re.compile("shared"))
    expect(tokens.nth(5)).to_have_class(re.compile("parting.*pinned"))
    expect(page.get_by_role("heading", name="Token 6 of")).to_be_visible()


def test_the_parting_comes_with_a_rerun_and_leaves_a_pin_of_the_reader_alone(page: Page, server: Server) -> None:
    trial = ScriptedTrial()
    tokens = show(page, server, trial)
    trial.go_on(20)
    expect(tokens).to_have_count(20)
    tokens.nth(2).click()
    page.evaluate("update({ shared: 9 })")
    expect(page.locator(".parting")).to_have_count(1)
    expect(page.get_by_role("heading", name="Token 3 of")).to_be_visible()
    page.evaluate("update({ shared: null })")
    expect(page.locator(".parting, .shared")).to_have_count(0)


def test_an_answer_that_all_share_has_no_parting(page: Page, server: Server) -> None:
    trial = ScriptedTrial()
    trial.go_on(12)
    trial.finish()
    show(page, server, trial, shared=12)
    expect(page.locator(".shared")).to_have_count(12)
    expect(page.locator(".parting")).to_have_count(0)


def test_a_pin_in_the_common_start_is_followed_by_the_strips_beside(page: Page, server: Server) -> None:
    trial = ended()
    show(page, server, trial, shared=5)
    expect(page.locator(".parting.pinned")).to_have_count(1)
    first = len(trial.prompt_steps)
    for index, shown in ((2, 3), (9, 3), (5, 6)):
        detail = f"{{ place: {first + index}, numPrompt: {first}, numShared: 5 }}"
        page.evaluate(f"dispatchEvent(new CustomEvent('logitbench.strip.pinned', {{ detail: {detail} }}))")
        expect(page.get_by_role("heading", name=f"Token {shown} of")).to_be_visible()
    page.evaluate(
        "window.events = []; addEventListener('logitbench.strip.pinned', ({ detail }) => events.push(detail))"
    )
    page.locator(".t.answer").nth(1).click()
    assert page.evaluate("events") == [{"place": first + 1, "numPrompt": first, "numShared": 5}]


def test_a_setting_chosen_at_one_strip_holds_for_all(page: Page, server: Server) -> None:
    show(page, server, ended())
    page.evaluate("dispatchEvent(new CustomEvent('logitbench.strip', { detail: { mode: 'time' } }))")
    expect(page.locator(".root")).to_have_attribute("data-mode", "time")
    page.get_by_role("button", name="Uncertainty").click()
    expect(page.locator(".root")).to_have_attribute("data-mode", "uncertainty")


def test_without_controls_only_the_tokens_are_left(page: Page, server: Server) -> None:
    show(page, server, ended())
    expect(page.locator(".bar-row")).to_be_visible()
    page.evaluate("update({ controls: false })")
    expect(page.locator(".bar-row")).to_be_hidden()
    expect(page.locator(".figures")).to_be_hidden()
    expect(page.locator(".t.answer").first).to_be_visible()
