"""Guard of the API: Host, Origin, key and size of a request, checked before any route sees it."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from engine.api.connections import in_request
from engine.api.openai.errors import ApiError
from engine.api.request_rules import FOREIGN_HOST, header, is_loopback

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

OPEN = frozenset({"/health", "/openapi.json", "/docs"})
"""Paths that need no key: they tell nothing of the model and its calls, and a browser cannot send a key by itself."""

LISTING = ("/metrics", "/v1/files", "/v1/batches", "/v1/jobs")
"""Paths, with all below them, that tell a program what others do: they are refused where there is no key."""


class BodyLimit(NamedTuple):
    """Limits of a body: its bytes, and seconds to arrive, as a connection that stops in one would be kept for ever."""

    most_bytes: int
    within_s: float


BODY = BodyLimit(4 << 20, 60.0)
UPLOADS = {"/v1/files": BodyLimit(100 << 20, 600.0)}
"""Limits of all routes, and of those that take files, which are not held in memory."""


class Guard:
    """ASGI middleware that passes on allowed requests and answers all others with an error.

    Host must be a loopback name. A request with an Origin comes from a web page and is refused, except those of
    `origins`. Every path except those of OPEN needs the key as `Authorization: Bearer …`; key empty: none is needed,
    and those of LISTING are refused. A body has at most 4 MiB, one with a file 100 MiB.
    """

    def __init__(self, app: Application, *, key: str, origins: Sequence[str] = ()) -> None:
        self._app, self._key = app, key.encode()
        self._origins = frozenset((origin.encode(),) for origin in origins)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one ASGI scope; web sockets are refused."""
        match scope["type"]:
            case "lifespan":
                await self._app(scope, receive, send)
            case "http":
                with in_request():
                    if error := self._refusal_of(scope):
                        await respond(send, error)
                    else:
                        with suppress(asyncio.CancelledError):  # the server ends, before the client has read all
                            await self._app(scope, _bounded(receive, _limit_of(scope)), send)
            case _:
                await send({"type": "websocket.close", "code": 1008})

    def _refusal_of(self, scope: MutableMapping[str, Any]) -> ApiError | None:
        if not is_loopback(scope):
            return ApiError(FOREIGN_HOST.status, FOREIGN_HOST.text)
        origin = header(scope, b"origin")
        if origin and origin not in self._origins:
            return ApiError(
                403,
                "Refused: a web page sent this request. Only the pages named by LOGITBENCH_API_ORIGINS may use this "
                "API.",
            )
        if scope["path"] not in OPEN and (error := self._refusal_of_key(scope)):
            return error
        length = header(scope, b"content-length")
        limit = _limit_of(scope)
        if length and int(length[0] if length[0].isdigit() else 0) > limit.most_bytes:
            return _too_large(limit)
        return None

    def _refusal_of_key(self, scope: MutableMapping[str, Any]) -> ApiError | None:
        if self._key and not self._has_key(scope):
            return ApiError(
                401,
                "The API key is missing or wrong: send the one that was printed at the start as a bearer token.",
                type="authentication_error",
                code="invalid_api_key",
            )
        if not self._key and any(scope["path"] == path or scope["path"].startswith(f"{path}/") for path in LISTING):
            return ApiError(
                403,
                "This server was started without a key, so one program may not read what others do: start it with a "
                "key.",
                type="permission_error",
                code="key_required",
            )
        return None

    def _has_key(self, scope: MutableMapping[str, Any]) -> bool:
        given = header(scope, b"authorization")
        if len(given) != 1:
            return False
        scheme, _, key = given[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key)


def _limit_of(scope: MutableMapping[str, Any]) -> BodyLimit:
    return UPLOADS.get(scope["path"], BODY)


def _too_large(limit: BodyLimit) -> ApiError:
    return ApiError(413, f"The body has more than {limit.most_bytes:,} bytes.", code="body_too_large")


def _bounded(receive: Receive, limit: BodyLimit) -> Receive:
    """Limit the bytes of a body that gives no length, and the time until all of it has come.

    The returned function raises ApiError beyond these.
    """
    num_bytes = 0
    until: float | None = asyncio.get_running_loop().time() + limit.within_s

    async def count() -> Message:
        nonlocal num_bytes, until
        if until is None:  # the body is complete
            return await receive()
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            raise ApiError(408, f"The body did not come within {limit.within_s:g} s.", code="body_timeout") from None
        if not message.get("more_body"):
            until = None
        num_bytes += len(message.get("body", b""))
        if num_bytes > limit.most_bytes:
            raise _too_large(limit)
        return message

    return count


async def respond(send: Send, error: ApiError) -> None:
    """Answer a request with an error, in place of the application."""
    body = msgspec.json.encode(error.body())
    given = {"content-type": "application/json", "content-length": str(len(body)), **error.headers()}
    headers = [(name.encode(), value.encode()) for name, value in given.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
