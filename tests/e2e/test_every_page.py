"""What holds for every page: readable in light and dark, a name for all that can be pressed, nothing cut off."""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from playwright.sync_api import TimeoutError as NotInTime

from engine.models import shipped
from tests.e2e.conftest import Server, is_settled, profile

pytestmark = pytest.mark.slow
RECORDED = next(shipped("demo").glob("*.trial")).stem
PAGES = {
    "Overview": "/overview",
    "Prompt lab": f"/?trial={RECORDED}",
    "Compare": "/compare",
    "Traffic": "/traffic",
    "Benchmark": "/benchmark?question=speed",
    "History": "/history",
    "Cost": "/cost",
    "Models": "/models",
    "Embeddings": "/embeddings",
}
# How many charts a page has. One that gets a new theme before it is drawn keeps words of the old one.
CHARTS = {"Cost": 2, "Embeddings": 1}
FITS = """() => [document.documentElement, document.querySelector("[data-testid=stMain]")].every(
  (one) => one.scrollWidth <= one.clientWidth)"""
WIDTHS = (1400, 900, 700)
"""The last is what 1,400 pixels are at a zoom of 200 %."""
ON_A_PHONE = """() => {
  const main = document.querySelector("[data-testid=stMain]");
  const choices = [...main.querySelectorAll("[data-testid=stButtonGroup] > *")];
  const cut = choices.filter((one) => one.scrollWidth > one.clientWidth);
  const texts = [...main.querySelectorAll("p, summary, [data-baseweb=select], [data-testid^=stBaseButton]")];
  const covered = [...main.querySelectorAll("[data-testid=stElementToolbarButtonContainer]")].flatMap((buttons) => {
    const on = buttons.getBoundingClientRect();
    return texts.filter((one) => {
      const below = one.getBoundingClientRect();
      return !buttons.contains(one) && below.width && below.left < on.right && below.right > on.left
        && below.top < on.bottom && below.bottom > on.top;
    });
  });
  return [...cut, ...covered].map((one) => one.textContent);
}"""
"""Choices too wide for their row, and texts below the buttons of tables, which a touch screen shows all the time."""
READABLE = (Path(__file__).parent / "readable.js").read_text("utf-8")
NAMELESS = re.compile(r"- (button|link|textbox|combobox|slider|spinbutton|checkbox|radio|switch|tab)( \[[^\]]*\])*:?$")


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page on which nothing fails: no script, no request, nothing said in the console."""
    opened = context.new_page()
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    opened.on("response", lambda got: faults.append(f"{got.status} {got.url}") if got.status >= 400 else None)
    yield opened
    opened.close()
    assert faults == []


def unreadable(page: Page, within_s: float = 60) -> list[dict[str, object]]:
    """The words whose contrast is too low, once the page has drawn itself; charts take on a new theme last."""
    end = time.monotonic() + within_s
    found: list[dict[str, object]]
    page.wait_for_timeout(300)
    while (found := page.evaluate(READABLE)) and time.monotonic() < end:
        page.wait_for_timeout(100)
    return found


@pytest.mark.parametrize("title", PAGES)
def test_a_page_can_be_read_and_used(kept: Server, page: Page, title: str) -> None:
    page.goto(kept.url + PAGES[title])
    page.get_by_role("heading", name=title, exact=True).wait_for()
    is_settled(page)
    expect(page.locator(".js-plotly-plot")).to_have_count(CHARTS.get(title, 0))
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        expect(page.get_by_test_id("stApp")).to_have_css("color-scheme", theme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 1000})
            assert unreadable(page) == [], (theme, width)
            page.wait_for_function(FITS)  # a table follows a new width a moment later
    nameless = [
        line.strip() for line in page.locator("body").aria_snapshot().splitlines() if NAMELESS.match(line.strip())
    ]
    assert nameless == []


def test_the_title_stands_at_the_same_height_on_every_page(kept: Server, page: Page) -> None:
    tops = {}
    for title, path in PAGES.items():
        page.goto(kept.url + path)
        heading = page.get_by_role("heading", name=title, exact=True)
        heading.wait_for()
        is_settled(page)
        tops[title] = heading.evaluate(
            "title => { const text = document.createRange(); text.selectNodeContents(title); "
            "return Math.round(text.getBoundingClientRect().top); }"
        )
    tops.pop("Overview", None)  # its logo stands beside the name
    assert len(set(tops.values())) == 1, tops


def test_a_warning_in_a_caption_can_be_read(kept: Server, page: Page) -> None:
    page.goto(f"{kept.url}/models?view=get&get=nonsense")
    page.get_by_text("nonsense is not in the catalogue").wait_for()
    is_settled(page)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        expect(page.get_by_test_id("stApp")).to_have_css("color-scheme", theme)
        assert unreadable(page) == [], theme


@pytest.mark.parametrize("path", ["/history?view=runs", "/models"])
def test_a_table_offers_no_csv_of_its_own(kept: Server, page: Page, path: str) -> None:
    page.goto(kept.url + path)
    is_settled(page)
    page.get_by_test_id("stDataFrame").first.hover()
    expect(page.get_by_role("button", name=re.compile("^Search: "))).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("CSV"))).to_have_count(0)


@pytest.fixture(scope="module")
def phone(browser: Browser) -> Iterator[BrowserContext]:
    """A profile of a phone."""
    with profile(browser, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True) as context:
        yield context


@pytest.mark.parametrize("title", PAGES)
def test_a_phone_shows_all_choices_and_all_texts(kept: Server, phone: BrowserContext, title: str) -> None:
    page = phone.new_page()
    page.goto(kept.url + PAGES[title])
    page.get_by_test_id("stMain").get_by_role("heading", name=title, exact=True).wait_for()
    is_settled(page)
    with suppress(NotInTime):  # charts and tables follow a moment later
        page.wait_for_function(f"() => !({ON_A_PHONE})().length && ({FITS})()", timeout=60_000)
    unseen, is_in_window = page.evaluate(ON_A_PHONE), page.evaluate(FITS)
    page.close()
    assert unseen == []
    assert is_in_window
