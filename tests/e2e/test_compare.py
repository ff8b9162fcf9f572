"""The Compare page in a real browser: runs judged and taken along as one file, one prompt under two arms."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from engine.runs import RunRecord
from tests.e2e.conftest import Server, has_ended, is_settled

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


def test_runs_are_judged_and_the_file_opens_offline(
    kept: Server, runs: list[RunRecord], open_page: OpenPage, browser: Browser, tmp_path: Path
) -> None:
    page = open_page(f"{kept.url}/compare?runs={','.join(run.id for run in runs)}", "Compare")
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    is_settled(page)
    said = page.get_by_role("heading", level=3).first.inner_text().replace("\u2060", "")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download as HTML").click()
    path = tmp_path / "comparison.html"
    download.value.save_as(path)
    with browser.new_context(offline=True) as elsewhere:
        alone = elsewhere.new_page()
        alone.goto(path.as_uri())
        expect(alone.get_by_text(said)).to_be_visible()
        expect(alone.locator(".js-plotly-plot, .plotly-graph-div").first).to_be_visible()


LINES = """text => {
  const pane = text.getBoundingClientRect();
  const tops = [...text.querySelectorAll(".t.answer")].flatMap((token) => [...token.getClientRects()])
    .filter(({ top, bottom }) => top >= pane.top && bottom <= Math.min(pane.bottom, innerHeight))
    .map(({ top }) => Math.round(top));
  return new Set(tops).size;
}"""
"""Lines of an answer that are seen in the window."""
HEIGHT = "main => main.scrollHeight - document.querySelector('.st-key-arms_recent').offsetHeight"
"""Height of the page in px, without the list of recent comparisons: other tests use the same server."""


def edit(page: Page, variant: int) -> Locator:
    """Open the editor of a variant."""
    page.get_by_role("button", name="Edit", exact=True).nth(variant).click()
    editor = page.get_by_test_id("stPopoverBody")
    expect(editor).to_be_visible()
    return editor


def close(page: Page) -> None:
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("stPopoverBody")).to_have_count(0)


def length(page: Page, max_tokens: int) -> None:
    """Let both variants answer with this many tokens."""
    for variant in (0, 1):
        box = edit(page, variant).get_by_role("spinbutton", name="Max tokens")
        box.fill(str(max_tokens))
        box.press("Enter")
        is_settled(page)
        close(page)


def compared(page: Page, max_tokens: int) -> None:
    """Run the two variants with which the page opens."""
    run = page.get_by_role("button", name=re.compile("^Run Shortcut"))
    expect(run).to_be_enabled()
    is_settled(page)
    length(page, max_tokens)
    run.click()
    expect(page).to_have_url(re.compile(r"\?comparison=[0-9a-f-]{36}"))
    expect(page.get_by_role("heading", level=3).first).to_have_text(re.compile(r"token"))
    is_settled(page)


def test_one_prompt_under_two_arms(kept: Server, open_page: OpenPage) -> None:
    page = open_page(f"{kept.url}/compare", "Compare")
    expect(page.get_by_role("button", name=re.compile("^Run Shortcut"))).to_be_enabled()
    is_settled(page)
    found = []
    for variant in (0, 1):
        found.append(float(edit(page, variant).get_by_role("spinbutton", name="Temperature").input_value()))
        close(page)
    assert found == [0, 1]
    compared(page, 24)
    expect(page.locator(".t.answer").nth(24)).to_be_visible()  # of the second answer, which may end early
    page.get_by_text("Differences", exact=True).click()
    expect(page).to_have_url(re.compile(r"view=Differences"))
    address = page.url
    page.reload()
    expect(page).to_have_url(address)
    expect(page.get_by_role("heading", level=3).first).to_have_text(re.compile(r"token"))


def test_a_candidate_is_banned_in_its_variant_or_continued_with_in_the_prompt_lab(
    kept: Server, open_page: OpenPage
) -> None:
    page = open_page(f"{kept.url}/compare", "Compare")
    page.set_viewport_size({"width": 1400, "height": 900})
    compared(page, 24)
    page.locator(".root.sharing .text").nth(1).locator(".t.answer").nth(3).click()
    rows = page.locator(".shared .inspector .candidates tbody tr")
    rows.first.hover()
    rows.first.get_by_role("button", name=re.compile("^Ban")).click()
    expect(page.get_by_text("Edited since this answer.")).to_have_count(1)
    editor = edit(page, 1)
    editor.get_by_role("tab", name="Constraints").click()
    expect(editor.get_by_role("switch", name="Ban")).to_be_checked()
    close(page)
    other = page.locator(".shared .inspector .candidates tbody tr:not(.chosen)").first
    other.hover()
    other.get_by_role("button", name="Continue with").click()
    expect(page).to_have_url(re.compile(r"\?trial=[0-9a-f-]{36}"))
    has_ended(page)
    expect(page.get_by_role("heading", name="Prompt lab")).to_be_visible()
    expect(page.locator(".t.forced")).to_have_count(1)


def test_the_answers_are_seen_without_scrolling(kept: Server, open_page: OpenPage) -> None:
    page = open_page(f"{kept.url}/compare", "Compare")
    page.set_viewport_size({"width": 1400, "height": 900})
    compared(page, 128)
    expect(page.get_by_role("textbox", name="Prompt")).to_be_hidden()
    answers = page.locator(".root.sharing .text")
    expect(answers).to_have_count(2)
    for answer in answers.all():
        expect(answer.locator(".t.answer").nth(100)).to_be_attached()
        box = answer.bounding_box()
        assert box is not None and box["y"] < 500
        assert answer.evaluate(LINES) >= 8
    tokens = answers.nth(1).locator(".t.answer")
    tokens.nth(20).click()
    inspector = page.locator(".shared .inspector")
    expect(inspector.locator("h3")).to_have_text(re.compile("Token 21 of"))
    expect(page.locator(".inspector:visible")).to_have_count(1)
    place = inspector.bounding_box()
    assert place is not None and place["y"] < 500
    page.get_by_text("Once upon a time", exact=False).first.click()
    expect(page.get_by_role("textbox", name="Prompt")).to_be_visible()
    page.set_viewport_size({"width": 900, "height": 900})
    page.reload()
    expect(answers).to_have_count(2)
    expect(answers.nth(1).locator(".t.answer").nth(100)).to_be_attached()
    is_settled(page)
    tops = [box["y"] for answer in answers.all() if (box := answer.bounding_box()) is not None]
    assert max(tops) < 900 and len(tops) == 2
    assert page.get_by_test_id("stMain").evaluate(HEIGHT) < 2160
    answers.first.locator(".t.answer").nth(20).click()
    candidates = page.locator(".inspector:visible .table")
    expect(candidates.get_by_role("button", name="Ban").first).to_be_visible()
    assert candidates.evaluate("table => table.scrollWidth <= table.clientWidth")
