"""WebSocket that keeps the table of calls up to date: the rows that match at first, then those that change.

The page sends its filter, and another one whenever it changes; the server answers with `rows` (`all` true: in the place
of those it has), `gone` (numbers of rows that no longer match or gave way to newer ones), `num`, the number of calls
since the start, and `searched`, the number of the latest of them that are kept and thus searched.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from engine.api.openai.traffic import CallRow, Traffic
from pages.parts.live import GREETING_S, POLICY_VIOLATION
from pages.parts.traffic.call_cells import cells
from pages.parts.traffic.call_filter import LIVE, Wanted

SOCKET_PATH = "/logitbench/calls"
TICK_S = 0.1
SHOWN_ROWS = 200
MAX_MESSAGE = 8_192  # characters; a filter with every field full, escaped, takes less

_wanted = msgspec.json.Decoder(Wanted)
_encode = msgspec.json.Encoder().encode


class CallFeed:
    """Messages on the calls of `traffic` that match a filter, for one page."""

    def __init__(self, traffic: Traffic, wanted: Wanted) -> None:
        self._traffic, self._wanted = traffic, wanted
        self._newest: int | None = None
        self._open: set[int] = set()
        """Calls in progress, whether they match or not."""
        self._shown: dict[int, dict[str, Any]] = {}
        """The rows that the page has: the latest that match, as they were sent."""

    def message(self) -> dict[str, Any] | None:
        """Return the next message, None if nothing has changed."""
        num, is_first = self._traffic.num_calls, self._newest is None
        if self._newest is None:
            rows = self._traffic.rows()
        elif num > self._newest or self._open:
            rows = self._traffic.changed(self._newest, self._open)
        else:
            return None
        is_new = num != self._newest
        self._newest = num
        new, gone = self._news(rows)
        if not (is_first or is_new or new or gone):
            return None
        return {"num": num, "searched": self._traffic.num_kept, "all": is_first, "rows": new, "gone": gone}

    def _news(self, rows: list[CallRow]) -> tuple[list[dict[str, Any]], list[int]]:
        """Return the cells of rows that the page has not got, and the numbers of those it must drop."""
        matching = {row.number: row for row in rows if self._wanted.matches(row)}
        looked_at = self._open | {row.number for row in rows}
        unchanged = self._shown.keys() - looked_at
        latest = set(sorted(unchanged | matching.keys(), reverse=True)[:SHOWN_ROWS])
        made = {number: cells(row) for number, row in matching.items() if number in latest}
        new = [row for number, row in made.items() if row != self._shown.get(number)]
        gone = sorted(self._shown.keys() - latest)
        self._open = {row.number for row in rows if row.state in LIVE}
        self._shown = {number: made.get(number) or self._shown[number] for number in latest}
        return new, gone


async def _send(socket: WebSocket, feed: CallFeed) -> None:
    with suppress(WebSocketDisconnect, RuntimeError):  # the page left during a send; `_serve` receives that too
        while True:
            message = await asyncio.to_thread(feed.message)
            if message is not None:
                await socket.send_text(_encode(message).decode())
            await asyncio.sleep(TICK_S)


async def _serve(socket: WebSocket, traffic: Callable[[], Traffic]) -> None:
    """Answer until the page leaves or violates the protocol (closed with 1008)."""
    sending: asyncio.Task[None] | None = None
    try:
        message = await asyncio.wait_for(socket.receive_text(), GREETING_S)
        while True:
            if len(message) > MAX_MESSAGE:
                raise msgspec.ValidationError("the message is too long")
            wanted = _wanted.decode(message)
            await _end(sending)
            sending = asyncio.create_task(_send(socket, CallFeed(traffic(), wanted)))
            message = await socket.receive_text()
    except (msgspec.MsgspecError, KeyError, TimeoutError):
        await socket.close(POLICY_VIOLATION, "unreadable message")
    except WebSocketDisconnect:
        pass
    finally:
        await _end(sending)


async def _end(sending: asyncio.Task[None] | None) -> None:
    if sending is not None:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


def routes(traffic: Callable[[], Traffic]) -> list[BaseRoute]:
    """Return the routes for app.py; `traffic` is called for each filter."""

    async def calls(socket: WebSocket) -> None:
        await socket.accept()
        await _serve(socket, traffic)

    return [WebSocketRoute(SOCKET_PATH, calls)]
