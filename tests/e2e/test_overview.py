"""The Overview in the browser: measured with one button, kept over a restart, shared, and opened without a jump."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import PATIENT_MS
from tests.e2e.conftest import RUN, Server, has_ended, is_settled, running
from tests.e2e.test_every_page import FITS
from tests.e2e.test_layout_shift import MOST, NOTE_SHIFTS, settled_shifts

pytestmark = pytest.mark.slow
OpenPage = Callable[..., Page]
MOST_MS = 300_000
WIDTHS = (390, 900, 1400, 2200)
IN_A_ROW = """([tiles, number]) => {
  const texts = [...document.querySelectorAll("[data-testid=stMain] [data-testid=stCaptionContainer]")];
  const tops = tiles.map((tile) => texts.find((one) => one.textContent === tile)?.getBoundingClientRect().top);
  return tops.filter((top) => top === tops[0]).length === number;
}"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("overview")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Server]:
    with running(home) as server:
        yield server


def speed(page: Page) -> str:
    """The first answer of the card."""
    answer = page.get_by_test_id("stMain").get_by_text(re.compile(r"^[\d,.]+ tok/s measured(, disturbed)?$"))
    expect(answer).to_be_visible()  # a page that is being drawn is hidden, and has no text then
    return answer.inner_text()


def test_the_first_visit_is_the_prompt_lab_and_the_next_the_overview(server: Server, open_page: OpenPage) -> None:
    page = open_page(server.url)
    expect(page.get_by_role("link", name="Overview").first).to_be_visible()
    expect(page).not_to_have_url(re.compile("overview"))
    is_settled(page)
    shown = page.url  # of the trial that ships
    page.get_by_role("button", name=RUN).click()
    expect(page).not_to_have_url(shown)
    has_ended(page)
    address = page.url
    other = open_page(f"{server.url}/", "Overview")
    expect(other).to_have_url(re.compile("/overview$"))
    picture = other.get_by_role("img", name=re.compile(r"^Surprise of [\d,]+ tokens?: at most [\d.]+ bits$")).first
    expect(picture).to_be_visible()
    other.get_by_role("link", name="Once upon a time").first.click()
    expect(other).to_have_url(address)
    other.get_by_role("link", name="Prompt lab").first.click()
    expect(other.get_by_role("heading", name="Prompt lab", exact=True)).to_be_visible()


def test_one_button_measures_and_the_card_is_kept(server: Server, home: Path, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/overview", "Overview")
    page.get_by_role("button", name="Measure this machine").click()
    main = page.get_by_test_id("stMain")
    expect(main.get_by_text(re.compile(r"^sample \d+ of \d+ · .* left$"))).to_be_visible()
    expect(main.get_by_role("button", name="Stop")).to_be_visible()
    expect(page.get_by_role("button", name="Measure again")).to_be_visible(timeout=MOST_MS)
    said = speed(page)
    for condition in (r"threads?", r"context [\d,]+", r"llama\.cpp \S+", r"UTC", r"(quiet machine|disturbed)"):
        expect(main.get_by_text(re.compile(condition)).first).to_be_visible()
    page.get_by_role("link", name="Samples").click()
    expect(page.get_by_role("heading", name="Benchmark", exact=True)).to_be_visible()
    expect(page).to_have_url(re.compile("/benchmark\\?run="))
    again = open_page(f"{server.url}/overview", "Overview")
    expect(again.get_by_role("button", name="Measure again")).to_be_visible()
    assert speed(again) == said
    assert (home / "machine-cards.json").stat().st_mode & 0o077 == 0


def test_the_card_goes_out_in_three_forms(server: Server, open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(f"{server.url}/overview", "Overview")
    figure, _, provenance = speed(page).partition(" measured")
    page.get_by_role("button", name="Share").click()
    expect(
        page.get_by_test_id("stCode").get_by_text(f"Speed, one user: {figure} (measured{provenance})")
    ).to_be_visible()
    for label, ending in (("Image", "svg"), ("HTML page", "html")):
        with page.expect_download() as downloading:
            page.get_by_role("button", name=re.compile(label)).click()
        path = tmp_path / f"card.{ending}"
        downloading.value.save_as(path)
        assert asked_for(page.context.new_page(), path.as_uri(), figure) == [path.as_uri()]


def asked_for(page: Page, address: str, figure: str) -> list[str]:
    """The addresses that a file asks for when it is opened; it shows the figure."""
    found: list[str] = []
    page.on("request", lambda request: found.append(request.url))
    page.goto(address)
    expect(page.get_by_text(figure).first).to_be_visible()
    page.close()
    return found


@pytest.mark.parametrize("width", WIDTHS)
def test_it_opens_without_a_jump_at_every_width(server: Server, browser: Browser, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 1000})
    page.set_default_timeout(PATIENT_MS)
    page.add_init_script(NOTE_SHIFTS)
    page.goto(f"{server.url}/overview")
    page.get_by_role("heading", name="Traffic", exact=True).wait_for()
    is_settled(page)
    page.wait_for_function(FITS)
    shifts = settled_shifts(page)
    page.close()
    assert sum(shift["score"] for shift in shifts) <= MOST, shifts


def test_the_tiles_of_this_machine_stand_side_by_side_where_there_is_room(server: Server, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 900, "height": 1000})
    page.set_default_timeout(PATIENT_MS)
    page.goto(f"{server.url}/overview")
    page.get_by_role("heading", name="Traffic", exact=True).wait_for()
    is_settled(page)
    tiles = ("Speed, one user", "What limits it", "Largest model that fits")
    for width, in_a_row in ((390, 1), (900, 2), (1400, 3), (2200, 3)):
        page.set_viewport_size({"width": width, "height": 1000})
        page.wait_for_function(FITS)
        page.wait_for_function(IN_A_ROW, arg=[tiles, in_a_row])
    page.close()


def test_it_is_used_from_the_keyboard(server: Server, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/overview", "Overview")
    is_settled(page)
    link = page.get_by_test_id("stMain").get_by_role("link", name="Once upon a time").first
    link.focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("trial="))
    page.go_back()
    expect(page.get_by_role("heading", name="Overview", exact=True)).to_be_visible()
