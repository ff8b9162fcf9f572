"""The Embeddings page in a real browser: shipped sentences, a question, a file that is not what it says."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.conftest import Server, has_room_for_its_buttons, is_settled

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
FITS = "() => (main => main.scrollWidth <= main.clientWidth)(document.querySelector('[data-testid=stMain]'))"
IS_BELOW = """([above, below]) =>
    above.getBoundingClientRect().bottom <= below.getBoundingClientRect().top"""


def chart(page: Page, title: str) -> Locator:
    """The chart whose title begins so."""
    return page.get_by_role("figure", name=re.compile(f"^{title}"))


def test_from_sentences_to_a_map_and_an_answer(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(f"{shipped.url}/embeddings", "Embeddings")
    expect(chart(page, "Most alike")).to_be_visible()
    page.get_by_text("Map", exact=True).click()
    expect(chart(page, "This map preserves")).to_be_visible()
    expect(page).to_have_url(re.compile(r"view=map"))
    page.reload()
    expect(chart(page, "This map preserves")).to_be_visible()
    is_settled(page)
    parts = [
        chart(page, "This map preserves").element_handle(),
        page.get_by_text("Neighbours of", exact=True).element_handle(),
    ]
    for width in (720, 900, 1400):
        page.set_viewport_size({"width": width, "height": 1000})
        page.wait_for_function(FITS)
        page.wait_for_function(IS_BELOW if width < 1000 else f"parts => !({IS_BELOW})(parts)", arg=parts)
        has_room_for_its_buttons(page, page.get_by_test_id("stSelectbox"))


def test_an_example_is_found_by_its_meaning_with_one_click(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(f"{shipped.url}/embeddings", "Embeddings")
    expect(chart(page, "Most alike")).to_be_visible()
    page.get_by_text("food without flavour", exact=True).click()
    expect(page.get_by_text(re.compile("^Nearest, cosine .+soup tastes of nothing"))).to_be_visible()
    expect(page.get_by_label("Find by meaning")).to_have_value("food without flavour")
    page.set_viewport_size({"width": 390, "height": 900})
    page.wait_for_function(FITS)


def test_a_file_that_lies_about_its_type_is_said_and_a_true_one_is_read(
    shipped: Server, open_page: OpenPage, tmp_path: Path
) -> None:
    page = open_page(f"{shipped.url}/embeddings?source=File", "Embeddings")
    lie, table = tmp_path / "lie.csv", tmp_path / "true.csv"
    lie.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    table.write_text("text\nThe train is late.\nOur train has not come yet.\nThe soup needs <b>salt</b>.\n")
    page.locator("input[type=file]").set_input_files(lie)
    expect(page.get_by_role("alert")).to_contain_text("lie.csv")
    page.locator("input[type=file]").set_input_files(table)
    expect(chart(page, "Most alike, .*train")).to_be_visible()
    is_settled(page)
    expect(page.get_by_role("alert")).to_have_count(0)
