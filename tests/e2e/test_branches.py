"""Branches in a real browser: candidates, typed text, samples, the tree by mouse and keyboard, undo."""

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.conftest import Server, has_ended, is_settled
from tests.e2e.test_prompt_lab import OpenPage, answer, fill, run

pytestmark = pytest.mark.slow


def trials(page: Page, num: int) -> Locator:
    """Wait until the tree has this many trials; return its rows."""
    tree = page.get_by_role("tree", name=f"Branches · {num} trials")
    expect(tree).to_be_visible()
    is_settled(page)
    return tree.get_by_role("treeitem")


def branching(page: Page) -> Locator:
    """Open the controls below the candidates."""
    controls = page.locator("details.branching")
    expect(controls).to_be_visible()
    is_settled(page)
    if not controls.get_by_label("Number of samples").is_visible():
        controls.locator("summary").click()
    return controls


def started(page: Page) -> None:
    fill(page, "Max tokens", "12")
    fill(page, "Seed", "3")
    run(page)
    has_ended(page)


def test_a_candidate_a_text_and_samples_make_a_tree(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    started(page)
    first = page.url
    answer(page).nth(4).click()
    row = page.locator(".candidates tbody tr:not(.chosen)").first
    row.hover()
    row.get_by_role("button", name="Continue with").click()
    expect(page).not_to_have_url(first)
    has_ended(page)
    expect(page.locator(".t.forced")).to_have_count(1)
    trials(page, 2)
    answer(page).nth(2).click()
    controls = branching(page)
    controls.get_by_label("Text in place of this token").fill(" a cat")
    controls.get_by_role("button", name="Continue", exact=True).click()
    trials(page, 3)
    has_ended(page)
    expect(page.locator(".text")).to_contain_text(" a cat")
    answer(page).nth(1).click()
    controls = branching(page)
    controls.get_by_label("Number of samples").fill("5")
    controls.get_by_role("button", name="Samples").click()
    trials(page, 8)
    expect(page.locator(".tree .running")).to_have_count(0)


def test_the_tree_by_keyboard_with_a_name_a_star_and_undo(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    started(page)
    answer(page).nth(4).click()
    row = page.locator(".candidates tbody tr:not(.chosen)").first
    row.hover()
    row.get_by_role("button", name="Continue with").click()
    has_ended(page)
    rows = trials(page, 2)
    rows.first.focus()
    page.keyboard.press("ArrowLeft")
    expect(rows).to_have_count(1)
    page.keyboard.press("ArrowRight")
    expect(rows).to_have_count(3)
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keys")
    expect(keys.get_by_role("definition").filter(has_text="Name it")).to_be_visible()
    page.keyboard.press("Escape")
    expect(keys).to_be_hidden()
    expect(rows.first).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("F2")
    page.keyboard.type("the other <b>one</b>")
    page.keyboard.press("Enter")
    expect(rows.nth(1)).to_contain_text("the other <b>one</b>")
    rows.nth(1).focus()
    page.keyboard.press("s")
    page.keyboard.press("?")  # the row is drawn again behind the dialog
    expect(rows.nth(1).locator(".star")).to_be_visible()
    expect(keys).to_be_visible()
    page.keyboard.press("Escape")
    expect(rows.nth(1)).to_be_focused()
    page.keyboard.press("s")
    expect(rows.nth(1).locator(".star")).to_have_count(0)
    expect(rows.nth(1)).to_be_focused()
    page.keyboard.press("s")
    expect(rows.nth(1).locator(".star")).to_be_visible()
    page.reload()
    rows = trials(page, 2)
    expect(rows.nth(1)).to_contain_text("the other <b>one</b>")
    rows.nth(1).focus()
    page.keyboard.press("Enter")
    expect(rows.nth(1)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Delete")
    expect(page.get_by_role("tree")).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    trials(page, 2)


def test_every_row_of_a_large_tree_is_filled_reached_by_keyboard_and_named_for_screen_readers(
    shipped: Server, open_page: OpenPage
) -> None:
    page = open_page(shipped.url)
    started(page)
    answer(page).nth(1).click()
    controls = branching(page)
    controls.get_by_label("Number of samples").fill("64")
    controls.get_by_role("button", name="Samples").click()
    rows = trials(page, 65)
    expect(page.locator(".tree .running")).to_have_count(0)
    expect(page.locator(".tree [role=treeitem]:not(:has(.label))")).to_have_count(0)
    has_ended(page)
    num_rows = rows.count()
    assert num_rows > 64
    rows.first.focus()
    page.keyboard.press("End")
    expect(rows.last).to_be_focused()
    expect(rows.last).to_be_in_viewport()
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    names = [node["name"]["value"] for node in nodes if node.get("role", {}).get("value") == "treeitem"]
    assert len(names) == num_rows and all(", p " in name for name in names)


def test_the_most_probable_continuations_and_one_that_is_chosen(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    started(page)
    answer(page).nth(4).click()
    branching(page).get_by_role("button", name="Most probable").click()
    tree = page.get_by_role("tree", name="Most probable from token 5")
    expect(tree).to_be_visible()
    before = page.url
    tree.get_by_role("treeitem").nth(1).click()
    expect(page).not_to_have_url(before)
    has_ended(page)
    trials(page, 2)
    expect(page.locator(".t.forced").first).to_be_visible()


def test_a_ban_at_a_candidate_is_in_the_editor(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    started(page)
    answer(page).nth(4).click()
    row = page.locator(".candidates tbody tr.chosen")
    row.hover()
    row.get_by_role("button", name="Ban").click()
    expect(page.get_by_text("Edited since this run.")).to_be_visible()
    expect(page.get_by_role("button", name="More · 1 changed")).to_be_visible()
