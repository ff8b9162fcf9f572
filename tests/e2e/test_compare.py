"""The Compare page in a real browser: runs judged and taken along as one file, one prompt under two arms."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from engine.runs import RunRecord
from tests.e2e.conftest import Server, is_settled

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


def test_runs_are_judged_and_the_file_opens_offline(
    kept: Server, runs: list[RunRecord], open_page: OpenPage, browser: Browser, tmp_path: Path
) -> None:
    page = open_page(f"{kept.url}/compare?runs={','.join(run.id for run in runs)}", "Compare")
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    is_settled(page)
    said = page.get_by_role("heading", level=3).first.inner_text().replace("\u2060", "")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download as HTML").click()
    path = tmp_path / "comparison.html"
    download.value.save_as(path)
    with browser.new_context(offline=True) as elsewhere:
        alone = elsewhere.new_page()
        alone.goto(path.as_uri())
        expect(alone.get_by_text(said)).to_be_visible()
        expect(alone.locator(".js-plotly-plot, .plotly-graph-div").first).to_be_visible()


def test_one_prompt_under_two_arms(kept: Server, open_page: OpenPage) -> None:
    page = open_page(f"{kept.url}/compare", "Compare")
    run = page.get_by_role("button", name=re.compile("^Run"))
    expect(run).to_be_enabled()
    is_settled(page)
    temperatures = page.get_by_role("spinbutton", name="Temperature")
    expect(temperatures).to_have_count(2)
    assert [float(box.input_value()) for box in temperatures.all()] == [0, 1]
    for box in page.get_by_role("spinbutton", name="Max tokens").all():
        box.fill("24")
        box.press("Enter")
        is_settled(page)
    run.click()
    expect(page).to_have_url(re.compile(r"\?comparison=[0-9a-f-]{36}"))
    expect(page.get_by_role("heading", level=3).first).to_have_text(re.compile(r"token"))
    expect(page.locator(".t.answer").nth(24)).to_be_visible()  # of the second answer, which may end early
    page.get_by_text("Differences", exact=True).click()
    expect(page).to_have_url(re.compile(r"view=Differences"))
    address = page.url
    page.reload()
    expect(page).to_have_url(address)
    expect(page.get_by_role("heading", level=3).first).to_have_text(re.compile(r"token"))
