"""Constraints in a real browser: a schema typed, mended and followed; a token found, banned and never drawn."""

import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from engine.models.library import shipped as shipped_folder
from tests.e2e.conftest import RUN, Server, has_ended, is_settled
from tests.e2e.test_every_page import NAMELESS, WIDTHS, unreadable

OpenPage = Callable[[str], Page]
RECORDED = next(shipped_folder("demo").glob("*.trial")).stem
"""The trial that ships, whose parameters are the defaults: other tests' trials are newer on the same server."""
SCHEMA = '{"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}'


def is_ready(page: Page) -> None:
    expect(page.get_by_role("button", name=RUN)).to_be_enabled()
    is_settled(page)


def opened(page: Page) -> Locator:
    """The tab of constraints."""
    is_ready(page)
    page.get_by_role("button", name=re.compile("^More")).click()
    body = page.get_by_test_id("stPopoverBody")
    body.get_by_role("tab", name="Constraints").click()
    expect(body.get_by_label("Bias or ban a token", exact=True)).to_be_visible()
    return body


def close(page: Page) -> None:
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("stPopoverBody")).to_be_hidden()


def run(page: Page) -> str:
    """Run and return the text of the answer."""
    is_ready(page)
    before = page.url
    page.get_by_role("button", name=RUN).click()
    expect(page).not_to_have_url(before)
    has_ended(page)
    return "".join(page.locator(".t.answer:not(.special)").all_text_contents())


def test_a_schema_is_checked_in_place_and_then_followed(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(f"{shipped.url}/?trial={RECORDED}")
    body = opened(page)
    body.get_by_role("radio", name="JSON schema").click()
    field = body.get_by_role("textbox", name="JSON schema")
    assert "mono" in field.evaluate("field => getComputedStyle(field).fontFamily")
    field.fill(SCHEMA.replace('"required":', '"required"'))
    field.blur()
    expect(body.get_by_role("alert")).to_contain_text("line 1 column 74 (char 73)")
    expect(body.get_by_role("alert")).to_contain_text("JSON schema is not JSON")
    field.fill(SCHEMA)
    field.blur()
    expect(body.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_role("button", name="More · 1 changed")).to_be_visible()
    close(page)
    assert json.loads(run(page))["a"] in ("x", "y")
    page.reload()
    expect(opened(page).get_by_role("textbox", name="JSON schema")).to_have_value(SCHEMA)


@pytest.mark.slow
def test_an_example_grammar_ends_in_one_of_its_words(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(f"{shipped.url}/?trial={RECORDED}")
    opened(page).get_by_role("button", name="Yes or no").click()
    expect(page.get_by_test_id("stPopoverBody").get_by_role("textbox", name="Grammar")).to_have_value(re.compile("yes"))
    close(page)
    assert run(page) in ("yes", "no")
    page.locator(".t.answer").first.click()
    expect(page.locator(".candidates tr.cut").first).to_contain_text(re.compile("(cut|forbidden) by"))


def test_a_token_is_found_while_typing_banned_and_never_drawn(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(f"{shipped.url}/?trial={RECORDED}")
    body = opened(page)
    search = body.get_by_label("Bias or ban a token", exact=True)
    search.press_sequentially("the")
    choice = body.get_by_role("radio", name=re.compile(r"^␣the · [\d,]+$"))
    expect(choice).to_be_visible()
    choice.click()
    row = body.get_by_label("Bias of ␣the, nats")
    expect(row).to_be_disabled()
    expect(search).to_have_value("the")
    expect(choice).to_have_count(0)
    expect(page.get_by_role("button", name="More · 1 changed")).to_be_visible()
    close(page)
    assert not re.search(r"(?<![a-z]) the(?![a-z])", run(page))
    page.reload()
    expect(opened(page).get_by_label("Bias of ␣the, nats")).to_be_disabled()


@pytest.mark.slow
def test_a_search_typed_while_the_page_is_drawn_again_is_not_lost(shipped: Server, open_page: OpenPage) -> None:
    body = opened(open_page(f"{shipped.url}/?trial={RECORDED}"))
    body.get_by_role("button", name="Yes or no").click()  # a field appears above the search
    body.get_by_label("Bias or ban a token", exact=True).press_sequentially("king")
    expect(body.get_by_role("radio", name=re.compile("^␣kingdom ·"))).to_be_visible()


@pytest.mark.slow
def test_ban_at_a_candidate_puts_its_token_on_the_list(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(f"{shipped.url}/?trial={RECORDED}")
    run(page)
    page.locator(".t.answer").nth(2).click()
    row = page.locator(".inspector .candidates tbody tr").first
    row.hover()
    row.get_by_role("button", name=re.compile("^Ban")).click()
    expect(page.get_by_role("button", name="More · 1 changed")).to_be_visible()
    expect(page.get_by_text("Edited since this run.")).to_be_visible()
    expect(opened(page).get_by_role("switch", name="Ban")).to_be_checked()


@pytest.mark.slow
def test_the_tab_can_be_read_and_every_control_has_a_name(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(f"{shipped.url}/?trial={RECORDED}")
    body = opened(page)
    body.get_by_role("radio", name="Grammar").click()
    field = body.get_by_role("textbox", name="Grammar")
    field.fill("root ::= (")
    field.blur()
    expect(body.get_by_role("alert")).to_contain_text("ends unexpectedly")
    body.get_by_label("Bias or ban a token", exact=True).fill("king")
    body.get_by_role("radio", name=re.compile("^␣king ·")).click()
    expect(body.get_by_role("switch", name="Ban")).to_be_checked()
    is_settled(page)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        expect(page.get_by_test_id("stApp")).to_have_css("color-scheme", theme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 1000})
            assert unreadable(page) == [], (theme, width)
            box = body.bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
    lines = [line.strip() for line in body.aria_snapshot().splitlines()]
    assert [line for line in lines if NAMELESS.match(line)] == []
