"""A switch between light and dark: charts then have the colours that they have when loaded in that theme."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from engine.models import embedded_model
from engine.runs import RunRecord
from tests.e2e.conftest import ASKING, Server, is_settled, profile

pytestmark = pytest.mark.slow

CHARTS = {
    "Cost": "/cost",
    "Embeddings": "/embeddings",
    "Embeddings, map": "/embeddings?view=map",
    "Benchmark": "/benchmark?run={first}",
    "Benchmark, samples": "/benchmark?run={first}&chart=Samples+by+time",
    "Compare": "/compare?runs={first},{second}",
    "History, trend": "/history?trend={first}.0",
    "Models": "/models?view=library&model={model}",
}
DRAWN = """() => [...document.querySelectorAll(".js-plotly-plot")].map((chart) => ({
  marks: [...chart.querySelectorAll("path, rect, text, circle, line")].map((one) => {
    const { fill, stroke } = getComputedStyle(one);
    return `${one.tagName} ${fill} ${stroke}`.replace(/#[^"]*/, ""); // names of gradients are drawn by lot
  }),
  areas: [...chart.querySelectorAll("image")].map((one) => one.getAttribute("xlink:href") ?? one.getAttribute("href")),
  canvas: chart._fullData.map(({ type, marker, colorscale }) => [type, marker?.color ?? null, colorscale ?? null]),
}))"""
"""What is seen of each chart: colours of its marks and words, its areas as images, and what is drawn on a canvas."""

MARK = """() => document.querySelectorAll(".js-plotly-plot").forEach((chart) => (chart.isOfBefore = true))"""
KEPT = """() => [...document.querySelectorAll(".js-plotly-plot")].map((chart) => chart.isOfBefore === true)"""
Theme = Literal["light", "dark"]
OTHER: dict[Theme, Theme] = {"light": "dark", "dark": "light"}


@pytest.fixture(scope="module")
def systems(browser: Browser) -> Iterator[dict[Theme, BrowserContext]]:
    """A profile of a system that is light, and of one that is dark."""
    with ExitStack() as open_profiles:
        found: dict[Theme, BrowserContext] = {}
        for theme in OTHER:
            found[theme] = open_profiles.enter_context(
                profile(browser, viewport={"width": 1400, "height": 1000}, reduced_motion="reduce")
            )
            found[theme].add_init_script(ASKING)
        yield found


@pytest.mark.parametrize("name", CHARTS)
def test_charts_follow_a_switch(
    kept: Server, systems: dict[Theme, BrowserContext], runs: list[RunRecord], name: str
) -> None:
    first, second = (run.id for run in runs)
    address = kept.url + CHARTS[name].format(first=first, second=second, model=embedded_model())
    pages = {theme: opened(context, address, theme) for theme, context in systems.items()}
    loaded = {theme: steady(page) for theme, page in pages.items()}
    assert loaded["light"] != loaded["dark"]
    for begun, page in pages.items():
        page.evaluate(MARK)
        for theme in (OTHER[begun], begun):
            page.emulate_media(color_scheme=theme)
            expect(page.get_by_test_id("stApp")).to_have_css("color-scheme", theme)
            assert steady(page, loaded[theme]) == loaded[theme], (begun, theme)
            assert set(page.evaluate(KEPT)) == {True}  # drawn again in place, so that nothing flashes
        page.close()


def opened(context: BrowserContext, address: str, theme: Theme) -> Page:
    """A page with its charts, loaded in a theme."""
    page = context.new_page()
    page.emulate_media(color_scheme=theme)
    page.goto(address)
    page.locator(".js-plotly-plot .main-svg").first.wait_for()
    is_settled(page)
    expect(page.locator("[data-testid=stPlotlyChart]:not(:has(.main-svg))")).to_have_count(0)
    return page


def steady(page: Page, wanted: list[Any] | None = None, within_s: float = 30) -> list[Any]:
    """What is drawn once it stays the same; where something is wanted, once it is that, or the time is over."""
    end = time.monotonic() + within_s
    found: list[Any] = page.evaluate(DRAWN)
    while time.monotonic() < end:
        page.wait_for_timeout(200)
        before, found = found, page.evaluate(DRAWN)
        if found == (before if wanted is None else wanted):
            break
    return found
