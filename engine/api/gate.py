"""Gate: the outermost ASGI application of the workbench, which refuses every request that no rule allows."""

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from engine.api.access import Access, Exchange
from engine.api.connections import in_request
from engine.api.request_rules import Refusal, is_health, refusal_of

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

SECURITY_HEADERS = (
    (b"content-security-policy", b"frame-ancestors 'self'; base-uri 'self'; object-src 'none'; form-action 'self'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
POLICY_VIOLATION = 1008


class Gate:
    """ASGI middleware that passes on a request or web socket if its headers and its peer are allowed, else refuses it.

    Only `/_stcore/health` is open to everybody. access: the setting `access`; home: the folder of the token's file;
    address: returns the address of the start page, called when the server starts.
    """

    def __init__(self, app: Application, *, access: str, home: Path, address: Callable[[], str]) -> None:
        self._app, self._access, self._address = app, Access(access, home), address

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one ASGI scope. Raises ValueError for an unknown type of scope."""
        match scope["type"]:
            case "lifespan":
                self._announce()
                await self._app(scope, receive, send)
            case "http":
                with in_request():
                    await self._answer(scope, receive, _with_security_headers(send))
            case "websocket":
                with in_request():
                    await self._open(scope, receive, send)
            case unknown:
                raise ValueError(f"ASGI scope {unknown!r}: neither http nor web socket, so no rule allows it")

    async def _answer(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if is_health(scope):
            await self._app(scope, receive, send)
        elif refusal := refusal_of(scope):
            await _refuse(send, refusal)
        elif exchange := self._access.exchange(scope):
            await _go_on(send, exchange)
        elif refusal := self._access.refusal_of(scope):
            await _refuse(send, refusal)
        else:
            await self._app(scope, receive, send)

    async def _open(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if refusal_of(scope) or self._access.refusal_of(scope):
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        else:
            await self._app(scope, receive, send)

    def _announce(self) -> None:
        if said := self._access.announcement(self._address(), is_seen=sys.stdout.isatty()):
            print(said, flush=True)


def _with_security_headers(send: Send) -> Send:
    async def send_guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            present = {name.lower() for name, _ in headers}
            extra = [(name, value) for name, value in SECURITY_HEADERS if name not in present]
            message = {**message, "headers": [*headers, *extra]}
        await send(message)

    return send_guarded


async def _refuse(send: Send, refusal: Refusal) -> None:
    await _respond(send, refusal.status, refusal.text)


async def _go_on(send: Send, exchange: Exchange) -> None:
    headers = ((b"location", exchange.location.encode()), (b"set-cookie", exchange.cookie.encode()))
    await _respond(send, 303, "The token is valid; redirecting to the page.", headers)


async def _respond(send: Send, status: int, text: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    body = text.encode()
    about = ((b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()))
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*about, (b"cache-control", b"no-store"), *headers],
        }
    )
    await send({"type": "http.response.body", "body": body})
