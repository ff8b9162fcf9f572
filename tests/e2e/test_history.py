"""The History page in a real browser: find, choose, delete with a way back, import, ask in SQL."""

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from engine.history.archives.parts import MANIFEST, SAMPLES
from engine.runs import RunRecord
from tests.e2e.conftest import RUN, Server, choose_row, click_in_row, has_ended, has_room_for_its_buttons, is_settled

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
ROOT = Path(__file__).parents[2]
NAME_X = 190
"""Where the names of runs stand in the list, which is drawn on a canvas, in pixels from its left."""

ROWS = re.compile(r"^[\d,]+ rows? in ")


def caption(page: Page, text: str) -> Locator:
    return page.get_by_test_id("stCaptionContainer").filter(has_text=text).first


def test_a_search_is_the_address_and_the_run_found_opens(
    kept: Server, runs: list[RunRecord], open_page: OpenPage
) -> None:
    page = open_page(f"{kept.url}/history", "History")
    expect(page).to_have_url(re.compile(r"view=runs"))
    box = page.get_by_role("textbox", name="Search")
    box.fill("Evening")
    box.press("Enter")
    expect(caption(page, "1 run")).to_be_visible()
    expect(page).to_have_url(re.compile(r"text=Evening"))
    is_settled(page)
    choose_row(page, 0)
    page.get_by_role("button", name="Open the run").click()
    expect(page).to_have_url(re.compile(rf"/benchmark\?run={runs[1].id}"))
    expect(page.get_by_role("heading", name="Benchmark")).to_be_visible()


def test_a_deleted_run_is_said_in_another_tab_and_comes_back(
    kept: Server, runs: list[RunRecord], open_page: OpenPage
) -> None:
    page = open_page(f"{kept.url}/history?view=runs&text=Morning", "History")
    expect(caption(page, "1 run")).to_be_visible()
    is_settled(page)
    choose_row(page, 0)
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete 1 run").click()
    expect(page.get_by_text("1 run was deleted.")).to_be_visible()
    address = f"{kept.url}/benchmark?run={runs[0].id}"
    other = open_page(address, "Benchmark")
    expect(other.get_by_text("it was deleted or never saved")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(caption(page, "1 run")).to_be_visible()
    other.goto(address)
    expect(other.get_by_role("heading", level=3).first).to_be_visible()
    expect(other.get_by_text("it was deleted or never saved")).to_have_count(0)


def test_pasted_lines_are_seen_before_they_are_taken_in(kept: Server, open_page: OpenPage) -> None:
    page = open_page(f"{kept.url}/history?view=runs", "History")
    page.get_by_role("button", name="Import").click()
    box = page.get_by_label("Or paste lines")
    box.fill("235 tokens in 80s = 2.93 tokens/s (4 threads)")
    box.press("Control+Enter")
    page.locator(".st-key-history_take_in button").click()
    expect(caption(page, "3 runs")).to_be_visible()


def test_all_of_it_goes_out_as_one_file(kept: Server, open_page: OpenPage) -> None:
    page = open_page(f"{kept.url}/history", "History")
    is_settled(page)
    with page.expect_download() as came:
        page.get_by_role("link", name="Export all").click()
    assert came.value.suggested_filename == "logitbench-history.zip"
    with zipfile.ZipFile(came.value.path()) as archive:
        assert {MANIFEST, SAMPLES} <= set(archive.namelist())
        assert archive.testzip() is None


def test_references_in_a_chart_then_sql_that_answers_and_refuses(kept: Server, open_page: OpenPage) -> None:
    page = open_page(f"{kept.url}/history?view=reference", "History")
    chart = page.locator(".js-plotly-plot").first
    expect(chart).to_contain_text("c7i.4xlarge")
    expect(chart).to_contain_text("tok/s")
    page.get_by_text("SQL", exact=True).click()
    expect(page).to_have_url(re.compile(r"view=sql"))
    is_settled(page)
    page.get_by_role("button", name=re.compile("^Run")).click()
    expect(page.get_by_text(ROWS)).to_be_visible()
    box = page.get_by_role("textbox", name="SQL")
    expect(box).to_have_css("font-family", re.compile("monospace"))
    box.fill("DELETE FROM runs")
    box.press("Control+Enter")
    expect(page.get_by_test_id("stAlert")).to_be_visible()
    expect(page.get_by_text(ROWS)).to_have_count(0)


def test_a_link_with_sql_runs_nothing_until_its_reader_does(kept: Server, open_page: OpenPage) -> None:
    page = open_page(f"{kept.url}/history?view=sql&query=SELECT%20pg_sleep(1000)", "History")
    is_settled(page)
    expect(page.get_by_role("textbox", name="SQL")).to_have_value("SELECT pg_sleep(1000)")
    expect(caption(page, "press Run")).to_be_visible()
    expect(page.get_by_test_id("stAlert")).to_have_count(0)
    page.get_by_role("button", name=re.compile("^Run")).click()
    expect(page.get_by_test_id("stAlert")).to_contain_text("longer than 2 s")


def test_the_shell_reads_what_the_open_workbench_has(kept: Server, runs: list[RunRecord]) -> None:
    environment = {**os.environ, "LOGITBENCH_HOME": str(kept.home)}
    words = [sys.executable, "-m", "engine", "history", "list", "--json"]
    done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert {run.id for run in runs} <= {row["id"] for row in json.loads(done.stdout)["rows"]}


def test_a_name_is_a_link_to_its_run(kept: Server, runs: list[RunRecord], open_page: OpenPage) -> None:
    page = open_page(f"{kept.url}/history?view=runs&text=Evening", "History")
    expect(caption(page, "1 run")).to_be_visible()
    is_settled(page)
    click_in_row(page, 0, x=NAME_X)
    expect(page).to_have_url(re.compile(rf"/benchmark\?run={runs[1].id}"))
    expect(page.get_by_role("heading", name="Benchmark")).to_be_visible()


def test_a_period_is_one_click_and_is_saved_as_a_view(kept: Server, open_page: OpenPage) -> None:
    page = open_page(f"{kept.url}/history?view=runs&text=ing", "History")
    page.get_by_role("radio", name="Today").click()
    expect(page).to_have_url(re.compile(r"days=1$"))
    expect(caption(page, "Nothing matches this filter.")).to_be_visible()
    page.get_by_role("button", name=re.compile("Save view")).click()
    box = page.get_by_label("Name of this view")
    box.fill("Fresh today")
    box.press("Enter")
    page.get_by_role("button", name="Save", exact=True).click()
    pill = page.get_by_role("radio", name="Fresh today", exact=True)
    expect(pill).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("radio", name="Any time").click()
    expect(caption(page, "2 runs")).to_be_visible()
    pill.click()
    expect(page).to_have_url(re.compile(r"days=1$"))
    page.get_by_role("button", name=re.compile("Edit view")).click()
    page.get_by_role("button", name="Delete view").click()
    expect(pill).to_have_count(0)
    expect(page.get_by_text("The view Fresh today was deleted.")).to_be_visible()


def test_a_report_is_made_of_chosen_runs_and_read_without_a_network(
    kept: Server, open_page: OpenPage, browser: Browser, tmp_path: Path
) -> None:
    page = open_page(f"{kept.url}/history?view=runs&text=ing", "History")
    expect(caption(page, "2 runs")).to_be_visible()
    is_settled(page)
    choose_row(page, 0)
    choose_row(page, 1)
    page.get_by_role("button", name=re.compile("To report")).click()
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page).to_have_url(re.compile(r"view=reports&report=[0-9a-f-]{36}&edit=1"))
    expect(page.locator(".js-plotly-plot")).to_have_count(2)
    page.get_by_role("button", name="Add text").click()
    box = page.get_by_label("Text", exact=True)
    box.fill("# Findings\nMore sequences are faster.")
    box.press("Control+Enter")
    is_settled(page)
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("heading", name="Findings")).to_be_visible()
    with page.expect_download() as came:
        page.get_by_role("button", name="HTML page").click()
    path = tmp_path / "report.html"
    came.value.save_as(path)
    offline = browser.new_context(offline=True)
    errors: list[str] = []
    shown = offline.new_page()
    shown.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    shown.goto(path.as_uri())
    expect(shown.get_by_role("heading", name="Findings")).to_be_visible()
    expect(shown.locator(".js-plotly-plot .main-svg").first).to_be_visible()
    expect(shown.locator(".js-plotly-plot")).to_have_count(2)
    assert errors == []
    offline.close()


def test_a_trial_of_a_report_is_a_strip_to_inspect(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    is_settled(page)
    before = page.url
    page.get_by_role("button", name=RUN).click()
    expect(page).not_to_have_url(before)
    has_ended(page)
    page.goto(f"{shipped.url}/history?view=trials")
    expect(caption(page, "1 trial")).to_be_visible()
    is_settled(page)
    choose_row(page, 0)
    page.get_by_role("button", name=re.compile("To report")).click()
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page).to_have_url(re.compile("report="))
    page.locator(".t.answer").nth(2).click()
    expect(page.locator(".inspector h3").first).to_have_text(re.compile(r"^Token 3 of \d+$"))


def test_the_buttons_of_the_list_do_not_lie_over_the_filters(kept: Server, open_page: OpenPage) -> None:
    page = open_page(f"{kept.url}/history?view=runs", "History")
    expect(caption(page, " runs")).to_be_visible()
    is_settled(page)
    has_room_for_its_buttons(page, page.get_by_role("button", name="More", exact=True))
