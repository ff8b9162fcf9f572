"""ASGI scopes as a server builds them, and an application behind the gate that records whether it was reached."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.api.gate import Gate

Headers = tuple[tuple[str, str], ...]


def scope(
    kind: str = "http",
    path: str = "/",
    headers: Headers = (("host", "127.0.0.1:8501"),),
    *,
    method: str = "GET",
    query: str = "",
    scheme: str = "",
    client: tuple[str, int] | None = ("203.0.113.9", 4711),
) -> dict[str, Any]:
    """Return the scope of one request. Its peer is on another machine, so its user is unknown."""
    made = {
        "type": kind,
        "path": path,
        "scheme": scheme or {"http": "http", "websocket": "ws"}[kind],
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
        "client": client,
        "server": ("127.0.0.1", 8501),
    }
    return {**made, "method": method} if kind == "http" else made


class Asked:
    """Response to one scope: the messages sent, and whether the application behind the gate was reached."""

    def __init__(self, gate: Callable[[Any], Gate], scope: dict[str, Any]) -> None:
        self.messages: list[Any] = []
        self.is_passed = False
        with suppress(StopIteration):
            gate(self._beneath)(scope, self._receive, self._send).send(None)

    @property
    def status(self) -> int:
        """HTTP status."""
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        """Response headers."""
        return {name.decode(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def text(self) -> str:
        """Response body."""
        body: bytes = self.messages[1]["body"]
        return body.decode()

    async def _beneath(self, scope: Any, receive: Any, send: Any) -> None:
        self.is_passed = True
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"x-frame-options", b"DENY")]})
            await send({"type": "http.response.body", "body": b"beneath"})

    async def _receive(self) -> Any:
        raise AssertionError("the gate reads no body")

    async def _send(self, message: Any) -> None:
        self.messages.append(message)


def gate(home: Path, access: str = "open") -> Callable[[Any], Gate]:
    """Return a factory that puts the gate in front of an application."""
    return lambda app: Gate(app, access=access, home=home, address=lambda: "http://127.0.0.1:8501/")
