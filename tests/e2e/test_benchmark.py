"""The Benchmark page in a real browser: planned, watched, stopped, reloaded, continued, answered."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import Server, is_settled, running

OpenPage = Callable[..., Page]
RUN = re.compile(r"\?run=[0-9a-f-]{36}$")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server with the model that ships."""
    with running(tmp_path) as made:
        yield made


def field(page: Page, label: str, value: str) -> None:
    """Type into a field and leave it, then wait for the page."""
    box = page.get_by_label(label, exact=True)
    box.fill(value)
    box.press("Enter")
    is_settled(page)


IN_EQUAL_ROWS = """() => {
  const figures = [...document.querySelectorAll("[data-testid=stMetric]")];
  const rows = Object.groupBy(figures, (one) => Math.round(one.getBoundingClientRect().top));
  return figures.length === 4 && new Set(Object.values(rows).map((row) => row.length)).size === 1;
}"""


@pytest.mark.slow
def test_the_figures_of_a_plan_stand_in_equal_rows(kept: Server, open_page: OpenPage) -> None:
    page = open_page(f"{kept.url}/benchmark?question=speed", "Benchmark")
    for width in (1400, 1150, 1000, 900, 780, 500, 390):
        page.set_viewport_size({"width": width, "height": 1000})
        page.wait_for_function(IN_EQUAL_ROWS)


@pytest.mark.alone
def test_from_a_plan_to_a_sentence(server: Server, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/benchmark", "Benchmark")
    is_settled(page)
    expect(page.get_by_role("button", name=re.compile(r"^Run · about"))).to_be_enabled()
    field(page, "Layout", "1x1")
    field(page, "Sequences", "1, 2")
    field(page, "Rounds", "2")
    expect(page.get_by_text("No verdict is possible with 2 rounds")).to_be_visible()
    page.get_by_role("button", name=re.compile(r"^Raise to 8 rounds · about")).click()
    expect(page.get_by_label("Rounds", exact=True)).to_have_value("8")
    expect(page.get_by_role("button", name=re.compile(r"^Raise"))).to_be_hidden()
    field(page, "Rounds", "2")
    page.get_by_role("button", name=re.compile(r"^Run without a verdict · about")).click()
    expect(page).to_have_url(RUN)
    address = page.url

    stop = page.get_by_role("button", name="Stop", exact=True).first
    expect(stop).to_be_visible()
    rows, dots = page.locator(".rows .row"), page.locator(".track .dot")
    expect(rows).to_have_count(2)
    place = rows.first.bounding_box()
    expect(page.get_by_text(re.compile(r"^[1-9]\d* samples? · ")).first).to_be_visible()
    expect(dots.first).to_be_visible()
    assert rows.first.bounding_box() == place  # nothing has moved
    page.reload()
    expect(page).to_have_url(address)
    expect(page.get_by_text(re.compile(r"^\d+ samples? · ")).first).to_be_visible()

    other = open_page(server.url)
    expect(other.get_by_text(re.compile(r"^A benchmark is running\."))).to_be_visible()
    expect(other.get_by_text(re.compile(r"^Sweep · \d+ samples?"))).to_be_visible()
    other.close()

    page.get_by_role("button", name="Stop", exact=True).first.click()
    going_on = page.get_by_role("button", name="Continue")
    expect(going_on).to_be_visible()
    is_settled(page)
    going_on.click()
    expect(going_on).to_be_hidden()
    expect(page.get_by_role("button", name=re.compile(r"Run again$"))).to_be_enabled(timeout=120_000)
    expect(page).to_have_url(address)
    expect(page.get_by_role("heading", level=3).first).to_have_text(re.compile(r"sequence|rounds?|quiet"))
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
