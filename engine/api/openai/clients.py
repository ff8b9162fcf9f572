"""Clients of the API: the name under which their calls take turns, and how many requests each may have open at once."""

from collections import Counter
from collections.abc import MutableMapping
from functools import lru_cache
from typing import Any

from engine.api.openai.errors import QUEUE_RETRY_S, ApiError
from engine.api.openai.guard import Application, Receive, Send, respond
from engine.api.openai.traffic import Traffic, printable
from engine.api.request_rules import header
from engine.specs import Origin

LONGEST_AGENT, LONGEST_ADDRESS = 100, 60


def client_of(scope: MutableMapping[str, Any]) -> str:
    """Return the name of a request's client: its User-Agent and its address, at most 161 characters.

    There is one key for all, so it tells no clients apart; neither do ports, of which each connection has another. The
    field `user` is not part of the name: it is read after the limits have held, and one program could give a new one
    with each request. Programs may give wrong names: what they have in the queue together is bounded by its lane.
    """
    agent = agent_of(scope)
    address, _port = scope.get("client") or ("", 0)
    return f"{printable(agent)[:LONGEST_AGENT]} {printable(address)[:LONGEST_ADDRESS]}".strip()


def agent_of(scope: MutableMapping[str, Any]) -> str:
    """Return the User-Agent of a request as it came; empty if it has none."""
    return b" ".join(header(scope, b"user-agent")).decode("latin-1")


def origin_of(scope: MutableMapping[str, Any]) -> Origin:
    """Return the origin of a request's jobs: the lane of calls, and the client."""
    return _origin(client_of(scope))


@lru_cache(maxsize=64)
def _origin(client: str) -> Origin:
    """Return the origin of a client's jobs, checked once for the clients that ask again and again."""
    return Origin(lane="api", client=client)


class ClientLimit:
    """ASGI middleware that lets one client have `most` POST requests open at once and answers any more with 429.

    A request is open until its answer has been sent or its client has left. Those that are refused are recorded in
    `traffic`.
    """

    def __init__(self, app: Application, *, most: int, traffic: Traffic) -> None:
        self._app, self._most, self._traffic = app, most, traffic
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one ASGI scope."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        client = client_of(scope)
        if self._open[client] >= self._most:
            refusal = self._refusal()
            self._traffic.refuse(agent_of(scope), scope["path"], refusal)
            await respond(send, refusal)
            return
        self._open[client] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    def _refusal(self) -> ApiError:
        return ApiError(
            429,
            f"This client has {self._most:,} requests open, as many as one may have at once "
            "(LOGITBENCH_API_REQUESTS): wait for one of them, then try again.",
            type="rate_limit_error",
            code="rate_limit_exceeded",
            retry_s=QUEUE_RETRY_S,
        )
