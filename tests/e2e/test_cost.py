"""The Cost page in a real browser: the answer, what is typed, an edited price, real files, a narrow window."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.conftest import Server

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
FITS = "() => (main => main.scrollWidth <= main.clientWidth)(document.querySelector('[data-testid=stMain]'))"
NOTES = "c7i.4xlarge finishes 18 h 12 min sooner than c7i.xlarge for $2.75 more."


def answer(page: Page) -> Locator:
    return page.get_by_role("heading", level=3).first


def type_price(page: Page, price: str) -> None:
    """Type over the price of the third machine in the table of prices, which is drawn on a canvas."""
    box = page.locator("[id^=gdg-overlay] input")
    for _attempt in range(30):  # until the canvas is drawn, it takes no clicks
        if box.is_visible():
            break
        page.get_by_test_id("stDataFrame").last.click(position={"x": 330, "y": 123})
        page.keyboard.press("Enter")
        page.wait_for_timeout(1_000)
    box.fill(price)
    expect(box).to_have_value(price)
    box.press("Enter")


def test_the_answer_follows_what_is_typed_and_fits_a_narrow_window(kept: Server, open_page: OpenPage) -> None:
    page = open_page(f"{kept.url}/cost", "Cost")
    expect(answer(page)).to_have_text(NOTES)
    page.get_by_text("Advanced", exact=True).click()
    box = page.get_by_label("Deadline, h", exact=True)
    box.fill("20")
    box.press("Enter")
    expect(answer(page)).to_have_text(re.compile(r"^c7i\.2xlarge takes 16 h 12 min and costs \$5\.78.+the cheapest"))
    expect(page).to_have_url(re.compile(r"/cost\?deadline_h=20"))
    expect(page.locator(".js-plotly-plot")).to_have_count(2)
    page.reload()
    expect(answer(page)).to_have_text(re.compile(r"^c7i\.2xlarge"))
    expect(page.get_by_label("Deadline, h", exact=True)).to_have_value("20")
    for width in (720, 1000, 1400):
        page.set_viewport_size({"width": width, "height": 1000})
        page.wait_for_function(FITS)


def test_an_edited_price_changes_the_answer_and_is_kept(kept: Server, open_page: OpenPage) -> None:
    page = open_page(f"{kept.url}/cost", "Cost")
    expect(answer(page)).to_have_text(NOTES)
    page.get_by_text("Prices", exact=True).click()
    type_price(page, "0")
    expect(page.get_by_text("Not saved")).to_be_visible()
    expect(answer(page)).to_have_text(NOTES)
    type_price(page, "0.1")
    expect(answer(page)).to_have_text(re.compile(r"^c7i\.4xlarge takes 11 h 12 min and costs \$1\.12"))
    expect(page.get_by_text("Not saved")).to_have_count(0)
    other = open_page(f"{kept.url}/cost", "Cost")
    expect(answer(other)).to_have_text(re.compile(r"\$1\.12"))
    page.get_by_role("button", name="Restore default prices").click()
    expect(answer(page)).to_have_text(NOTES)


def test_files_are_counted_and_taken_as_the_job(kept: Server, open_page: OpenPage, tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}.txt").write_text("Once upon a time there was a cat. " * 40 * number)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
    page = open_page(f"{kept.url}/cost", "Cost")
    page.get_by_text("Count real documents").click()
    page.locator("input[type=file]").first.set_input_files(sorted(tmp_path.iterdir()))
    page.get_by_role("button", name="Count", exact=True).click()
    expect(page.get_by_text("1 file skipped")).to_be_visible()
    page.get_by_role("button", name="Use as the job").click()
    expect(page).to_have_url(re.compile(r"documents=2"))
    expect(page.get_by_text(re.compile(r"tokens of 2 documents, by .+ tokenizer"))).to_be_visible()
