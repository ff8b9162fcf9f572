"""Beam search in a real browser: searched, pruned beams shown, a sequence opened, the address opened again."""

import pytest
from playwright.sync_api import expect

from tests.e2e.conftest import Server, has_ended, is_settled
from tests.e2e.test_prompt_lab import OpenPage

pytestmark = pytest.mark.slow


def test_a_beam_search_is_shown_as_sequences_and_as_a_tree(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    page.get_by_role("button", name="Beam search").click()
    page.get_by_role("spinbutton", name="Longest sequence").fill("12")
    page.get_by_role("button", name="Search", exact=True).click()
    sequences = page.get_by_role("tree", name="Beam search · 4 sequences").get_by_role("treeitem")
    expect(sequences).to_have_count(4)
    has_ended(page)
    page.keyboard.press("Escape")
    expect(sequences.first.locator(".token")).to_have_count(12)
    assert "nats" in (sequences.first.locator(".token").nth(2).get_attribute("title") or "")
    tree = page.get_by_role("tree", name="Beams · 4 sequences")
    num_rows = tree.get_by_role("treeitem").count()
    page.get_by_text("Show pruned beams").click()
    expect(page.get_by_role("tree", name="pruned")).to_be_visible()
    is_settled(page)
    assert tree.get_by_role("treeitem").count() > num_rows
    searched = page.url
    assert "pruned=1" in searched
    sequences.nth(2).click()
    expect(page).not_to_have_url(searched)
    has_ended(page)
    expect(sequences.nth(2)).to_have_attribute("aria-selected", "true")
    expect(page.locator(".t.forced")).to_have_count(12)
    page.goto(searched)
    expect(page.get_by_role("tree", name="pruned")).to_be_visible()
    expect(sequences.first).to_have_attribute("aria-selected", "true")
