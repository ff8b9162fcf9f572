"""The command palette in a real browser: Ctrl+K, a few keys, and another page is open."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import RUN, Server, has_ended, is_settled

pytestmark = pytest.mark.slow
OpenPage = Callable[..., Page]


def opened(page: Page, text: str) -> None:
    """Open the palette, once it is there, and type a text."""
    expect(page.locator("button.open")).to_be_attached()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Search")).to_be_focused()
    page.keyboard.type(text)


def test_a_trial_is_found_by_its_prompt_and_opened(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    expect(page.get_by_role("button", name=RUN)).to_be_enabled()
    is_settled(page)
    before = page.url
    prompt = page.get_by_role("textbox", name="Prompt")
    prompt.fill("Once a rhinoceros")
    prompt.press("Control+Enter")
    expect(page).not_to_have_url(before)
    has_ended(page)
    address = page.url
    page.get_by_role("link", name="Cost").click()
    expect(page.get_by_role("heading", name="Cost", exact=True)).to_be_visible()
    is_settled(page)
    page.get_by_test_id("stSidebarHeader").hover()
    page.get_by_test_id("stSidebarCollapseButton").get_by_role("button").click()
    opened(page, "rhinoc")
    expect(page.get_by_role("option", selected=True)).to_have_text(re.compile("Once a rhinoceros"))
    page.keyboard.press("Enter")
    expect(page).to_have_url(address)
    has_ended(page)
    page.get_by_test_id("stExpandSidebarButton").click()  # the browser remembers it for the tests behind this one


def test_a_comparison_of_temperatures_is_one_sentence_away(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(f"{shipped.url}/cost", "Cost")
    is_settled(page)
    opened(page, "compare t 0.2, 0.8, 1.2")
    expect(page.get_by_role("option")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Compare", exact=True)).to_be_visible()
    for temperature in (0.2, 0.8, 1.2):
        expect(page.get_by_text(f"temperature {temperature}", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name=RUN)).to_be_enabled()


def test_it_closes_with_escape_and_keys_of_the_page_stay_still(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(f"{shipped.url}/cost", "Cost")
    is_settled(page)
    page.locator("button.open").click()
    page.keyboard.type("pric")  # r and c are a rerun and the cache on Streamlit's own pages
    expect(page.get_by_role("option", selected=True)).to_have_text(re.compile("Cost"))
    expect(page.get_by_role("combobox", name="Search")).to_have_value("pric")
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("option").last).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Escape")
    expect(page.get_by_role("combobox", name="Search")).to_be_hidden()
    expect(page.get_by_role("dialog")).to_have_count(0)
