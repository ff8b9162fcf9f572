"""Layout shift while a page loads: the sum of all that the browser reports, with the sidebar open and closed."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from pages.parts.front_end import STATIC
from tests.conftest import PATIENT_MS
from tests.e2e.conftest import Server, is_settled, profile
from tests.e2e.test_every_page import PAGES as EVERY_PAGE

pytestmark = pytest.mark.slow

MOST = 0.1
"""The largest cumulative layout shift that counts as good (web.dev, Core Web Vitals)."""

QUIET_MS = 1500
"""Time without any shift after which a page has been drawn: charts and tables come last."""

PAGES = {**EVERY_PAGE, "Benchmark, a run": "/benchmark"}
NOTE_SHIFTS = (Path(__file__).parent / "layout_shift.js").read_text("utf-8")


@pytest.fixture(scope="module", params=["open", "closed"])
def loading(request: pytest.FixtureRequest, browser: Browser, kept: Server) -> Iterator[BrowserContext]:
    """A profile that notes shifts; its sidebar is as a person left it."""
    with profile(browser, viewport={"width": 1400, "height": 900}) as context:
        context.add_init_script(NOTE_SHIFTS)
        page = context.new_page()
        page.goto(kept.url + "/benchmark?question=speed")
        page.get_by_role("heading", name="Benchmark", exact=True).wait_for()
        is_settled(page)
        if request.param == "closed":
            page.get_by_test_id("stSidebar").hover()
            page.get_by_test_id("stSidebarCollapseButton").get_by_role("button").click()
            expect(page.get_by_test_id("stSidebar")).to_have_attribute("data-collapsed", "true")
        page.close()
        yield context


@pytest.mark.parametrize("name", PAGES)
def test_hardly_anything_moves_while_a_page_loads(kept: Server, loading: BrowserContext, name: str) -> None:
    page = loading.new_page()
    page.goto(kept.url + PAGES[name])
    page.get_by_role("heading", name=name.partition(",")[0], exact=True).wait_for()
    is_settled(page)
    shifts = settled_shifts(page)
    page.close()
    assert sum(shift["score"] for shift in shifts) <= MOST, shifts


def settled_shifts(page: Page) -> list[dict[str, float]]:
    """The shifts of a page, once none has come for a while."""
    found: list[dict[str, float]] = page.evaluate("layoutShifts")
    while True:
        page.wait_for_timeout(QUIET_MS)
        before, found = found, page.evaluate("layoutShifts")
        if len(found) == len(before):
            return found


FASTER = 6
"""How many times as fast as for a person what is hidden for a while appears: after less than two seconds."""

LATE_S = 2.5
"""Delay of each script of a widget: longer than what stands below the widget is hidden for it."""

AT_ONCE = set(re.findall(r'"\./static/js/([^"]+)"', (STATIC / "index.html").read_text("utf-8")))
"""Scripts that Streamlit's page names itself; all others belong to what a page shows."""


class LateScripts:
    """The scripts of widgets come LATE_S after a page has asked for them."""

    def __init__(self, page: Page) -> None:
        self._waiting: list[tuple[float, Route]] = []
        page.route("**/*.js", self._hold)

    def _hold(self, route: Route) -> None:
        is_late = Path(urlsplit(route.request.url).path).name not in AT_ONCE
        self._waiting.append((time.monotonic() + LATE_S * is_late, route))

    def let_through(self, page: Page) -> None:
        """Return once the page has drawn itself and waits for no script."""
        heading = page.get_by_test_id("stMain").get_by_role("heading", level=1)
        end = time.monotonic() + 180
        while self._waiting or not heading.count() or page.get_by_test_id("stSkeleton").count():
            page.wait_for_timeout(20)
            now = time.monotonic()
            assert now < end, self._waiting
            due = [route for at, route in self._waiting if at <= now]
            self._waiting = [(at, route) for at, route in self._waiting if at > now]
            for route in due:
                route.continue_()


@pytest.mark.parametrize("name", PAGES)
def test_hardly_anything_moves_where_scripts_come_late(kept: Server, browser: Browser, name: str) -> None:
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    context.set_default_timeout(PATIENT_MS)
    context.add_init_script(NOTE_SHIFTS)
    page = context.new_page()
    late, animations = LateScripts(page), context.new_cdp_session(page)
    animations.send("Animation.enable")
    animations.send("Animation.setPlaybackRate", {"playbackRate": FASTER})
    page.goto(kept.url + PAGES[name], wait_until="commit")
    late.let_through(page)
    is_settled(page)
    late.let_through(page)
    shifts = settled_shifts(page)
    context.close()
    assert sum(shift["score"] for shift in shifts) <= MOST, shifts


STUCK = """() => {
  const main = document.querySelector("[data-testid=stMainBlockContainer]");
  const widget = document.createElement("div");
  widget.innerHTML = '<div data-testid="stSkeleton"></div>';
  main.querySelector("[data-testid=stVerticalBlock]").prepend(widget);
  const kinds = ["h1", "[data-testid=stWidgetLabel]", "[data-testid=stMarkdownContainer]", "input"];
  return kinds.map((kind) => getComputedStyle(main.querySelector(kind)).visibility);
}"""
"""Puts a widget that never comes above all others; gives whether kinds of elements below it are seen."""


def test_a_widget_that_never_comes_hides_the_others_only_for_a_moment(kept: Server, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(f"{kept.url}/cost")
    heading = page.get_by_role("heading", name="Cost", exact=True)
    heading.wait_for()
    is_settled(page)
    page.get_by_test_id("stMain").locator("input").first.wait_for()
    assert page.evaluate(STUCK) == ["hidden"] * 4
    expect(heading).to_be_visible()
    expect(page.get_by_test_id("stWidgetLabel").first).to_be_visible()
    page.close()


NOTE_HEIGHTS = """() => {
  window.heights = [];
  new MutationObserver(() => {
    const grid = document.querySelector(".st-key-axes_layout_grid");
    if (grid) window.heights.push(grid.offsetHeight);
  }).observe(document, { subtree: true, childList: true, attributes: true });
}"""


def test_the_layout_grid_has_its_height_before_its_script_has_drawn_it(kept: Server, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(f"{kept.url}/benchmark?question=python")
    setting = page.get_by_role("combobox", name="Vary another setting")
    setting.wait_for()
    is_settled(page)
    page.evaluate(NOTE_HEIGHTS)
    setting.click()
    page.get_by_role("option", name="Layout", exact=True).click()
    page.get_by_role("button", name="1×1", exact=True).wait_for()
    is_settled(page)
    heights = page.evaluate("[...heights, document.querySelector('.st-key-axes_layout_grid').offsetHeight]")
    page.close()
    assert len(heights) > 1 and len(set(heights)) == 1, heights
