"""The Traffic page in the browser: calls of other programs appear by themselves, can be found again and are opened."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Dialog, Locator, Page, WebSocketRoute, expect

from engine.api.openai.server import KEY_FILE
from tests.e2e.conftest import Server, is_settled, running
from tests.e2e.test_every_page import unreadable
from tests.pages.app import HOSTILE
from tests.processes import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow
OpenPage = Callable[..., Page]
LONG_TEXTS = """table => {
  for (const cell of table.querySelectorAll("td.text:not(.state, :first-child)")) cell.textContent = "long-".repeat(12);
}"""
IS_WHOLE = "table => table.getBoundingClientRect().width <= table.closest('.scroll').clientWidth"
"""Whether a table needs no scrolling to the side."""


class Served(NamedTuple):
    """The workbench with its API."""

    server: Server
    port: int

    def call(self, client: str, **body: object) -> None:
        """Ask for a completion and read all of it."""
        connection = self.ask(client, **body)
        connection.getresponse().read()
        connection.close()

    def ask(self, client: str, **body: object) -> HTTPConnection:
        """Ask for a completion, to be read from the connection; closing that stops it."""
        key = (self.server.home / KEY_FILE).read_text("utf-8").strip()
        headers = {"authorization": f"Bearer {key}", "user-agent": client}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({"max_tokens": 8, "seed": 1, **body}), headers)
        return connection


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with calls of any tests."""
    with serving(tmp_path_factory.mktemp("traffic")) as served:
        yield served


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Served]:
    """A server without calls."""
    with serving(tmp_path) as served:
        yield served


@contextmanager
def serving(home: Path, model: Path | None = None) -> Iterator[Served]:
    """A server with its API, with the model that ships by default."""
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOGITBENCH_API_PORT", str(port))
        with running(home, model) as server:
            patch.undo()
            until(lambda: is_ready(port), "the API is not ready", 120)
            yield Served(server, port)


def is_ready(port: int) -> bool:
    """Whether the model is loaded."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()


def table(page: Page) -> Locator:
    return page.get_by_role("grid", name="Calls, newest first")


def number_of(served: Served, open_page: OpenPage, client: str) -> int:
    """The number of the latest call of a client."""
    page = open_page(f"{served.server.url}/traffic", "Traffic")
    row = table(page).locator("tbody tr").filter(has_text=client).first
    return int(row.get_attribute("data-number") or 0)


def test_a_call_appears_by_itself_and_is_opened(fresh: Served, open_page: OpenPage) -> None:
    page = open_page(f"{fresh.server.url}/traffic", "Traffic")
    expect(page.get_by_text("No calls yet.")).to_be_visible()
    fresh.call("first/1", prompt="Once upon a time")
    row = table(page).locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("first/1")
    expect(row).to_contain_text("done")
    row.click()
    expect(page).to_have_url(re.compile(r"call=1"))
    expect(page.get_by_role("heading", name="Call 1")).to_be_visible()
    expect(page.get_by_text("Once upon a time").first).to_be_visible()
    page.get_by_role("tab", name="Request as sent").click()
    expect(page.get_by_text('"prompt": "Once upon a time"')).to_be_visible()


def test_a_call_that_is_opened_while_it_waits_is_said_to_run_once_it_does(
    tmp_path: Path, slow_model: Path, open_page: OpenPage
) -> None:
    with serving(tmp_path, slow_model) as served:
        long = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True}
        first = [served.ask("first/1", **long) for _ in range(12)]
        page = open_page(f"{served.server.url}/traffic", "Traffic")
        expect(table(page).locator("tbody tr")).to_have_count(12)
        last = served.ask("last/1", **long)
        table(page).locator("tbody tr").filter(has_text="last/1").click()
        said = page.get_by_test_id("stCaptionContainer").filter(has_text="last/1")
        expect(said).to_have_text("last/1 to /v1/completions · waiting")
        for connection in first:
            connection.close()
        expect(said).to_have_text("last/1 to /v1/completions · running")
        last.close()
        expect(said).to_contain_text("· stopped after")


def test_a_filter_stands_in_the_address(fresh: Served, open_page: OpenPage) -> None:
    fresh.call("second/1", prompt="The king")
    fresh.call("third/1", prompt="The fox", max_tokens="many")
    page = open_page(f"{fresh.server.url}/traffic", "Traffic")
    row = table(page).locator("tbody tr")
    expect(row.filter(has_text="second/1")).to_have_count(1)
    is_settled(page)
    page.get_by_role("radio", name="Failed").click()
    expect(row).to_have_count(1)
    expect(row).to_contain_text("third/1")
    expect(page).to_have_url(re.compile(r"state=failed"))
    page.reload()
    expect(row).to_have_count(1)
    expect(page.get_by_text("1 of 2 calls since the start")).to_be_visible()
    fresh.call("fourth/1", prompt=5)
    expect(row).to_have_count(2)
    page.get_by_role("button", name="Clear").click()
    expect(row.filter(has_text="second/1")).to_have_count(1)


def test_a_call_opened_by_its_address_is_in_sight_in_the_table(served: Served, open_page: OpenPage) -> None:
    served.call("opened/1", prompt="x", max_tokens=1)
    number = number_of(served, open_page, "opened/1")
    for other in range(14):
        served.call(f"many/{other}", prompt="x", model="none")
    page = open_page(f"{served.server.url}/traffic?call={number}", "Traffic")
    opened = table(page).locator("tr[aria-selected=true]")
    expect(opened).to_have_attribute("data-number", str(number))
    expect(opened).to_be_in_viewport()


def test_rows_that_come_again_after_a_lost_connection_leave_the_page_where_it_is_read(
    served: Served, open_page: OpenPage
) -> None:
    served.call("lost/1", prompt="Once upon a time", max_tokens=40, ignore_eos=True)
    number = number_of(served, open_page, "lost/1")
    for other in range(14):
        served.call(f"many/{other}", prompt="x", model="none")
    page = open_page(f"{served.server.url}/traffic", "Traffic")
    sockets: list[WebSocketRoute] = []

    def follow(socket: WebSocketRoute) -> None:
        sockets.append(socket)
        socket.connect_to_server()

    page.route_web_socket(re.compile("/logitbench/calls$"), follow)
    page.set_viewport_size({"width": 1400, "height": 600})
    page.goto(f"{served.server.url}/traffic?call={number}")
    expect(table(page).locator("tr[aria-selected=true]")).to_be_in_viewport()
    expect(page.locator(".candidates").first).to_be_visible()
    is_settled(page)
    main = page.get_by_test_id("stMain")
    main.evaluate("main => main.scrollTo(0, main.scrollHeight)")
    before = main.evaluate("main => main.scrollTop")
    assert before > 300
    rows = table(page).locator("tbody")
    rows.evaluate("body => body.firstElementChild.classList.add('of-before')")
    num_before = len(sockets)
    sockets[-1].close()
    expect(rows.locator(".of-before")).to_have_count(0)
    assert len(sockets) == num_before + 1
    expect(table(page).locator("tr[aria-selected=true]")).to_have_attribute("data-number", str(number))
    assert main.evaluate("main => main.scrollTop") == before


def test_code_can_be_read_in_both_themes(served: Served, open_page: OpenPage) -> None:
    served.call("code/1", prompt="Once", max_tokens=2, logprobs=1, echo=True)
    page = open_page(f"{served.server.url}/traffic?call={number_of(served, open_page, 'code/1')}", "Traffic")
    page.get_by_role("tab", name="Request as sent").click()
    expect(page.get_by_text('"prompt":').first).to_be_visible()
    is_settled(page)
    page.get_by_role("button", name="Point a program here").click()
    expect(page.get_by_text("OPENAI_BASE_URL")).to_be_visible()
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        expect(page.get_by_test_id("stApp")).to_have_css("color-scheme", theme)
        assert unreadable(page) == [], theme


def test_the_keyboard_goes_to_one_row_from_it_to_others_and_on(served: Served, open_page: OpenPage) -> None:
    for number in range(3):
        served.call(f"keys/{number}", prompt="x", model="none")
    page = open_page(f"{served.server.url}/traffic", "Traffic")
    rows = table(page).locator("tbody tr")
    expect(rows.nth(2)).to_contain_text("keys/0")
    is_settled(page)
    expect(rows.and_(page.locator("[tabindex='0']"))).to_have_count(1)
    rows.first.focus()
    page.keyboard.press("ArrowDown")
    expect(rows.nth(1)).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("tbody tr:focus")).to_have_count(0)
    page.keyboard.press("Shift+Tab")
    expect(rows.nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"call=\d+"))
    expect(rows.nth(1)).to_have_attribute("aria-selected", "true")


@pytest.mark.parametrize("state", ["", "?state=failed"])
def test_no_column_is_reached_by_scrolling_only(served: Served, open_page: OpenPage, state: str) -> None:
    client = "a-client-whose-name-is-long/1"
    served.call(client, prompt="Once upon a time", max_tokens=200, ignore_eos=True)
    served.call(client, prompt="x", model="a-model-whose-name-is-long-" * 9)
    page = open_page(f"{served.server.url}/traffic{state}", "Traffic")
    expect(page.locator("td.error").first).to_contain_text("is not loaded")
    table(page).evaluate(LONG_TEXTS)
    for width in (2100, 1400, 1200, 1000, 900, 390):
        page.set_viewport_size({"width": width, "height": 900})
        until(lambda: table(page).evaluate(IS_WHOLE), "the table is wider than its place")
        heads = table(page).locator("th:visible").all_inner_texts()
        assert {"client", "state", "tokens"} <= set(heads)
        assert ("took" in heads) == (width > 2000 or width <= 1200)
        assert ("speed" in heads) == (width > 600)
        assert ({"endpoint", "model", "first token", "cached", "surprise", "least expected"} <= set(heads)) == (
            width >= 1400
        )


def test_hostile_texts_are_shown_as_they_are(served: Served, open_page: OpenPage) -> None:
    image = '<img src=x onerror="alert(2)">'
    served.call(f"evil {image}", prompt=f"{HOSTILE} {image} \x1b[31m\0 [a](javascript:alert(3))")
    served.call(f"evil {image}", prompt="x", model=f"{image} **bold**")
    page = open_page(f"{served.server.url}/traffic", "Traffic")
    dialogs: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    row = table(page).locator("tbody tr").filter(has_text="evil <img")
    expect(row).to_have_count(2)
    row.first.click()
    expect(page.get_by_text("is not loaded").first).to_be_visible()
    row.last.click()
    expect(page.get_by_text("Prompt as rendered")).to_be_visible()
    page.get_by_role("tab", name="Prompt as rendered").click()
    rendered = page.get_by_role("tabpanel", name="Prompt as rendered")
    expect(rendered.locator("code")).to_contain_text("<script>alert(1)</script> **bold**")
    expect(page.locator("main img[src=x], main script")).to_have_count(0)
    assert not dialogs
