"""The socket of the Traffic page: what it sends to a page, and what it does with pages that break its protocol."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient, WebSocketTestSession
from starlette.websockets import WebSocketDisconnect

from engine.api.openai.errors import ApiError
from engine.api.openai.traffic import Traffic
from pages.parts.live import POLICY_VIOLATION
from pages.parts.traffic.call_feed import MAX_MESSAGE, SHOWN_ROWS, SOCKET_PATH, routes
from pages.parts.traffic.call_filter import LONGEST_TEXT


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
