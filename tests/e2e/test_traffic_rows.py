"""Rows of calls in the browser: what is done to a row holds while the call runs, and its state can be heard as well."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, WebSocketRoute, expect

from engine.api.openai.server import KEY_FILE
from pages.parts.traffic.call_cells import COLUMNS
from pages.parts.traffic.call_feed import SHOWN_ROWS
from tests.e2e.conftest import is_settled
from tests.e2e.test_axe import AXE, violations
from tests.e2e.test_traffic import OpenPage, Served, serving, table

pytestmark = pytest.mark.slow
PLACES = [column.heading for column in COLUMNS]
SELECT = "cell => cell.getRootNode().getSelection().selectAllChildren(cell)"
SELECTED = "cell => cell.getRootNode().getSelection().toString()"


@pytest.fixture(scope="module")
def slow_api(tmp_path_factory: pytest.TempPathFactory, slow_model: Path) -> Iterator[Served]:
    """A server whose calls run long enough to be watched."""
    with serving(tmp_path_factory.mktemp("slow_traffic"), slow_model) as served:
        yield served


@contextmanager
def calling(served: Served, client: str) -> Iterator[None]:
    """A call that runs until the block ends."""
    key = (served.server.home / KEY_FILE).read_text("utf-8").strip()
    connection = HTTPConnection("127.0.0.1", served.port, timeout=60)
    body = {"prompt": "Once upon a time", "max_tokens": 1900, "ignore_eos": True, "stream": True}
    headers = {"authorization": f"Bearer {key}", "user-agent": client}
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        yield
    finally:
        connection.close()


def running_row(page: Page, client: str) -> Locator:
    """The row of a call, which has generated tokens."""
    row = table(page).locator("tbody tr").filter(has_text=client)
    expect(row).to_contain_text("running")
    expect(cell(row, "tokens")).not_to_be_empty()
    is_settled(page)
    return row


def cell(row: Locator, heading: str) -> Locator:
    return row.locator("td").nth(PLACES.index(heading))


def changes(row: Locator, times: int = 4) -> None:
    """Wait until the row has changed as often."""
    for _ in range(times):
        expect(cell(row, "tokens")).not_to_have_text(cell(row, "tokens").inner_text())


@pytest.mark.parametrize("heading", ["client", "state", "tokens"])
def test_a_running_call_is_opened_however_long_it_is_pressed(
    slow_api: Served, open_page: OpenPage, heading: str
) -> None:
    page = open_page(f"{slow_api.server.url}/traffic", "Traffic")
    with calling(slow_api, f"pressed-at-{heading}/1"):
        row = running_row(page, f"pressed-at-{heading}/1")
        cell(row, heading).hover()
        page.mouse.down()
        changes(row)
        page.mouse.up()
        expect(row).to_have_attribute("aria-selected", "true")
        expect(page).to_have_url(re.compile(rf"call={row.get_attribute('data-number')}\b"))


def test_the_call_that_was_pressed_is_opened_though_new_ones_have_moved_it(
    slow_api: Served, open_page: OpenPage
) -> None:
    page = open_page(f"{slow_api.server.url}/traffic", "Traffic")
    rows = table(page).locator("tbody tr")
    for name in ("moved/1", "moved/2"):
        slow_api.call(name, prompt="x", model="none")
    expect(rows.filter(has_text="moved/2")).to_have_count(1)
    is_settled(page)
    row = rows.filter(has_text="moved/1")
    before = row.bounding_box()
    cell(row, "client").hover()
    page.mouse.down()
    slow_api.call("moves/1", prompt="x", model="none")
    expect(rows.filter(has_text="moves/1")).to_have_count(1)
    assert row.bounding_box() != before
    page.mouse.up()
    expect(page).to_have_url(re.compile(rf"call={row.get_attribute('data-number')}\b"))


def test_a_selection_in_a_running_row_stays(slow_api: Served, open_page: OpenPage) -> None:
    page = open_page(f"{slow_api.server.url}/traffic", "Traffic")
    with calling(slow_api, "selected/1"):
        row = running_row(page, "selected/1")
        client = cell(row, "client")
        client.evaluate(SELECT)
        changes(row)
        assert client.evaluate(SELECTED) == "selected/1"


def test_the_page_stays_where_it_is_read_while_the_row_with_the_focus_changes(
    slow_api: Served, open_page: OpenPage
) -> None:
    for _ in range(14):
        slow_api.call("many/1", prompt="x", model="none")
    page = open_page(f"{slow_api.server.url}/traffic", "Traffic")
    page.set_viewport_size({"width": 1400, "height": 300})
    with calling(slow_api, "focused/1"):
        row = running_row(page, "focused/1")
        row.focus()
        main = page.get_by_test_id("stMain")
        main.evaluate("main => main.scrollTo(0, main.scrollHeight)")
        before = main.evaluate("main => main.scrollTop")
        assert before > 0
        expect(row).not_to_be_in_viewport()
        changes(row)
        expect(row).to_be_focused()
        assert main.evaluate("main => main.scrollTop") == before


def test_rows_are_heard_as_what_can_be_selected(slow_api: Served, open_page: OpenPage) -> None:
    for name in ("heard/1", "heard/2"):
        slow_api.call(name, prompt="x", model="none")
    page = open_page(f"{slow_api.server.url}/traffic", "Traffic")
    page.set_viewport_size({"width": 2100, "height": 1000})
    row = table(page).get_by_role("row", name="heard/2", selected=False)
    expect(row.get_by_role("gridcell", name="heard/2")).to_be_visible()
    is_settled(page)
    row.click()
    expect(table(page).get_by_role("row", selected=True)).to_have_count(1)
    expect(table(page).get_by_role("row", name="heard/2", selected=True)).to_be_visible()
    for column in COLUMNS:
        head = table(page).get_by_role("columnheader", name=column.heading, exact=True)
        expect(head).to_have_accessible_description(column.help)
        if column.help:
            expect(head).to_have_attribute("aria-description", column.help)
    is_settled(page)
    page.evaluate(AXE)
    assert violations(page) == []


def fed(served: Served, open_page: OpenPage, query: str, **first: object) -> tuple[Page, WebSocketRoute]:
    """The page with a filter, whose rows come from the test: this message, and what the test sends later."""
    served.call("any/1", prompt="x", model="none")
    page = open_page(f"{served.server.url}/traffic", "Traffic")
    sockets: list[WebSocketRoute] = []

    def answer(socket: WebSocketRoute) -> None:
        sockets.append(socket)
        socket.on_message(lambda _: socket.send(message(all=True, **first)))

    page.route_web_socket(re.compile("/logitbench/calls$"), answer)
    page.goto(f"{served.server.url}/traffic?{query}")
    expect(table(page)).to_be_visible()
    is_settled(page)
    return page, sockets[-1]


def message(**given: object) -> str:
    return json.dumps({"num": 1, "searched": 1, "all": False, "rows": [], "gone": [], **given})


def made(number: int, state: str = "done", error: str = "") -> dict[str, Any]:
    """A row as the server sends it."""
    cells = ["10:00:00", "any/1", "completions", "m", state, *[""] * (len(COLUMNS) - 5)]
    return {"number": number, "state": state, "error": error, "client": "any/1", "cells": cells}


@pytest.mark.parametrize(
    "query, rows, num, searched, said",
    [
        ("", 1, 1, 1, "1 call since the start"),
        ("", 2, 12_000, 5_000, "12,000 calls since the start"),
        ("", SHOWN_ROWS, 12_000, 5_000, f"12,000 calls since the start · the latest {SHOWN_ROWS} shown"),
        ("state=done", 2, 12, 12, "2 of 12 calls since the start"),
        ("text=m", 2, 12_000, 5_000, "2 of the latest 5,000 calls"),
        ("state=done", SHOWN_ROWS, 900, 900, f"The latest {SHOWN_ROWS} that match, of 900 calls since the start"),
        ("text=m", SHOWN_ROWS, 12_000, 5_000, f"The latest {SHOWN_ROWS} that match, of the latest 5,000 calls"),
    ],
)
def test_the_line_below_says_among_how_many_calls_was_searched(
    slow_api: Served, open_page: OpenPage, query: str, rows: int, num: int, searched: int, said: str
) -> None:
    sent = [made(number) for number in range(1, rows + 1)]
    page, _ = fed(slow_api, open_page, query, num=num, searched=searched, rows=sent)
    expect(table(page).locator("tbody tr")).to_have_count(rows)
    expect(page.get_by_text(said, exact=True)).to_be_visible()


def test_a_row_whose_call_is_refused_gives_its_place_to_the_error(slow_api: Served, open_page: OpenPage) -> None:
    page, socket = fed(slow_api, open_page, "", rows=[made(1, "waiting")])
    row = table(page).locator("tbody tr")
    expect(row.locator("td")).to_have_count(len(COLUMNS))
    row.evaluate("row => { row.dataset.met = row.cells[4].dataset.met = 'yes' }")
    socket.send(message(rows=[made(1, "failed", "Not loaded")]))
    error = row.locator("td.error")
    expect(error).to_have_text("Not loaded")
    expect(error).to_have_attribute("colspan", str(len(COLUMNS) - PLACES.index("tokens")))
    expect(row).to_have_class("failed")
    expect(row.locator("td")).to_have_count(PLACES.index("tokens") + 1)
    expect(row.locator("td.state")).to_have_attribute("title", "Not loaded")
    expect(row.locator("td.state")).to_have_attribute("data-met", "yes")
    expect(row).to_have_attribute("data-met", "yes")
