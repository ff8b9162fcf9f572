"""The socket of the Traffic page: what it sends to a page, and what it does with pages that break its protocol."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.testclient import TestClient, WebSocketTestSession
from starlette.websockets import WebSocketDisconnect

from engine.api.openai import traffic as kept
from engine.api.openai.errors import ApiError
from engine.api.openai.traffic import Call, Figures, Traffic
from pages.parts.live import POLICY_VIOLATION
from pages.parts.traffic import call_feed
from pages.parts.traffic.call_cells import cells
from pages.parts.traffic.call_feed import MAX_MESSAGE, SHOWN_ROWS, SOCKET_PATH, CallFeed, routes
from pages.parts.traffic.call_filter import LONGEST_TEXT, Wanted


@pytest.fixture
def traffic() -> Traffic:
    return Traffic()


@pytest.fixture
def client(traffic: Traffic) -> Iterator[TestClient]:
    with TestClient(Starlette(routes=routes(lambda: traffic))) as opened:
        yield opened


def numbers(socket: WebSocketTestSession) -> list[int]:
    return [row["number"] for row in json.loads(socket.receive_text())["rows"]]


def test_rows_come_at_first_then_those_that_change(client: TestClient, traffic: Traffic) -> None:
    for number in range(SHOWN_ROWS + 5):
        traffic.add(f"client {number}", "/v1/completions", "m", b"{}").fail(ApiError(400, "no"))
    with client.websocket_connect(SOCKET_PATH) as socket:
        socket.send_text("{}")
        first: dict[str, Any] = json.loads(socket.receive_text())
        assert (first["all"], first["num"], len(first["rows"])) == (True, SHOWN_ROWS + 5, SHOWN_ROWS)
        call = traffic.add("new", "/v1/completions", "m", b"{}")
        second = json.loads(socket.receive_text())
        assert (second["all"], [row["state"] for row in second["rows"]]) == (False, ["waiting"])
        call.fail(ApiError(400, "no"))
        assert [row["state"] for row in json.loads(socket.receive_text())["rows"]] == ["failed"]


def test_a_new_filter_takes_the_place_of_the_old_one(client: TestClient, traffic: Traffic) -> None:
    for name in ("one", "two", "one"):
        traffic.add(name, "/v1/completions", "m", b"{}").fail(ApiError(400, "no"))
    with client.websocket_connect(SOCKET_PATH) as socket:
        for client_name, found in (("one", [3, 1]), ("two", [2]), ("none", []), ("one", [3, 1])):
            socket.send_text(json.dumps({"client": client_name}))
            assert numbers(socket) == found


@pytest.mark.parametrize(
    "message",
    [
        "", "{", "[]", "null", "1e999", '{"state": "odd"}', '{"unknown": 1}', '{"client": 5}',
        json.dumps({"text": "x" * (LONGEST_TEXT + 1)}), "[" * (MAX_MESSAGE + 1), '{"text": "\\ud800"}',
        " " * MAX_MESSAGE + "{}",
    ],
)  # fmt: skip
def test_a_page_that_breaks_the_protocol_is_closed(client: TestClient, message: str) -> None:
    with client.websocket_connect(SOCKET_PATH) as socket:
        socket.send_text(message)
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_text()
    assert closed.value.code == POLICY_VIOLATION


def test_bytes_in_the_place_of_text_are_closed(client: TestClient) -> None:
    with client.websocket_connect(SOCKET_PATH) as socket:
        socket.send_bytes(b"{}")
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_text()
    assert closed.value.code == POLICY_VIOLATION


def test_a_broken_filter_behind_a_good_one_ends_the_rows(client: TestClient, traffic: Traffic) -> None:
    with client.websocket_connect(SOCKET_PATH) as socket:
        socket.send_text("{}")
        assert json.loads(socket.receive_text())["rows"] == []
        socket.send_text("{")
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_text()
    assert closed.value.code == POLICY_VIOLATION


def test_the_largest_filter_is_read(client: TestClient, traffic: Traffic) -> None:
    widest = "\U0001f600"
    asked = json.dumps({"client": widest * 60, "endpoint": widest * LONGEST_TEXT, "text": widest * LONGEST_TEXT})
    with client.websocket_connect(SOCKET_PATH) as socket:
        socket.send_text(asked)
        assert numbers(socket) == []


CHANGES = st.lists(st.tuples(st.sampled_from(["add", "add", "run", "end", "fail", "look"]), st.integers(0, 12)))
FILTERS = [
    Wanted(), Wanted(state="running"), Wanted(state="failed"), Wanted(client="0"), Wanted(text="refused"),
    Wanted(state="running", client="1"), Wanted(state="done"),
]  # fmt: skip


def change(calls: list[Call], traffic: Traffic, what: str, which: int) -> None:
    """Add a call, or change one that is there."""
    if what == "add":
        calls.append(traffic.add(str(which % 2), "/v1/embeddings", "m", b"{}"))
    elif calls:
        call = calls[-1 - which % len(calls)]
        if what == "run" and call.is_open:
            call.run("m")
        elif what == "end" and call.is_open:
            call.end(Figures(num_prompt=which))
        elif what == "fail" and call.is_open:
            call.fail(ApiError(400, "refused"))


def follow(feed: CallFeed, page: dict[int, dict[str, Any]]) -> None:
    """Do with a message what a page does."""
    message = feed.message()
    if message is not None:
        assert len(message["rows"]) <= call_feed.SHOWN_ROWS
        for number in message["gone"]:
            del page[number]
        page |= {row["number"]: row for row in message["rows"]}


@given(CHANGES, st.sampled_from(FILTERS), st.integers(1, 4))
def test_a_page_has_the_latest_rows_that_match_whatever_becomes_of_the_calls(
    changes: list[tuple[str, int]], wanted: Wanted, most: int
) -> None:
    traffic, calls, page = Traffic(), list[Call](), dict[int, dict[str, Any]]()
    feed = CallFeed(traffic, wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(call_feed, "SHOWN_ROWS", most)
        for what, which in [*changes, ("look", 0)]:
            change(calls, traffic, what, which)
            if what == "look":
                follow(feed, page)
                latest = [cells(row) for row in traffic.rows() if wanted.matches(row)][:most]
                assert sorted(page.values(), key=lambda row: -row["number"]) == latest
                assert feed.message() is None


def test_running_calls_beyond_those_shown_come_when_there_is_room(traffic: Traffic) -> None:
    calls = [traffic.add("one", "/v1/embeddings", "m", b"{}") for _ in range(SHOWN_ROWS + 50)]
    feed, page = CallFeed(traffic, Wanted(state="running")), dict[int, dict[str, Any]]()
    follow(feed, page)
    assert min(page) == 51
    for call in calls[-60:]:
        call.end(Figures())
    follow(feed, page)
    assert sorted(page) == list(range(1, SHOWN_ROWS - 9))


def test_a_running_call_that_is_no_longer_kept_goes_from_the_page(
    traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "KEPT_CALLS", 3)
    feed, page = CallFeed(traffic, Wanted(state="running")), dict[int, dict[str, Any]]()
    traffic.add("one", "/v1/embeddings", "m", b"{}")
    follow(feed, page)
    assert list(page) == [1]
    for _ in range(3):
        traffic.add("one", "/v1/embeddings", "m", b"{}").fail(ApiError(400, "no"))
    message = feed.message()
    assert message is not None and (message["gone"], message["num"], message["searched"]) == ([1], 4, 3)
