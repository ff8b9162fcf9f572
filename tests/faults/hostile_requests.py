"""Hostile requests: malformed, huge, from pages elsewhere, to every route; and broken frames on both web sockets."""

import json
import random
import socket
from contextlib import suppress
from urllib.parse import quote, urlsplit

from websockets.exceptions import InvalidHandshake, WebSocketException
from websockets.sync.client import ClientConnection, connect

from tests.faults.failure import MOST_S, Failure
from tests.faults.world import World

ROUTES = (
    "/", "/history", "/benchmark?run=1", "/_stcore/health", "/_stcore/host-config", "/_stcore/stream",
    "/_stcore/upload_file/a/b", "/_stcore/metrics", "/_stcore/script-health-check", "/media/x.png", "/logitbench/live",
    "/logitbench/export?token=x", "/logitbench/export", "/component/x/index.html", "/static/js/index.js", "/nowhere",
)  # fmt: skip
TRAVERSALS = (
    "/../../../etc/passwd",
    "/media/..%2f..%2fetc/passwd",
    "/static/%2e%2e/%2e%2e/app.py",
    "//etc/passwd",
    "/%00",
)
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "BREW", "G\0T")
FOREIGN = (
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "[::ffff:10.0.0.1]",
    "10.0.0.1",
    "",
    "\xff",
)
ELSEWHERE = ("http://evil.example", "http://localhost:3000", "http://127.0.0.1:1", "null", "file://", "http://[::1")
SECRETS = (b"root:x:", b"composition root")
FRAMES = (
    b"\xf1\x85\0\0\0\0hello",
    b"\x81\x05hello",
    b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0",
    b"\x81\x84\0\0\0\0\xff\xfe\xfd\xfc",
    b"\x89\xfe\x01\x00" + bytes(300),
    b"\x88\x81\0\0\0\0\x01",
    b"\x01\x81\0\0\0\0a" * 5000,
    b"\x8b\x80\0\0\0\0",
)
"""Frames that no library would send: reserved bits, unmasked, a length beyond all bounds, text that is no UTF-8."""

SOCKETS = ("/_stcore/stream", "/logitbench/live")


def hostile_request(world: World, draw: random.Random) -> None:
    """Some requests that no page of ours makes: each is answered or hung up on in time, and none gets at anything."""
    for _ in range(draw.randint(3, 12)):
        raw, is_foreign = _request(world, draw)
        world.doing = f"request {raw[:160]!r}"
        answer = _exchange(world, raw)
        _is_harmless(answer, is_foreign)


def hostile_frames(world: World, draw: random.Random) -> None:
    """Web sockets opened from elsewhere are refused; frames that break the protocol harm only their own connection."""
    path = draw.choice(SOCKETS)
    if draw.random() < 0.4:
        origin = draw.choice((*ELSEWHERE, None))
        world.doing = f"{path} opened by {origin}"
        _is_refused(world, path, origin)
        return
    world.doing = f"broken frames to {path}"
    for _ in range(draw.randint(1, 4)):
        with suppress(OSError, WebSocketException), _opened(world, path, world.app.url) as opened:
            for _ in range(draw.randint(1, 10)):
                _send_broken(opened, draw)
            opened.recv(timeout=0.2)


def _request(world: World, draw: random.Random) -> tuple[bytes, bool]:
    """A request, and whether a page elsewhere could have caused it."""
    own = urlsplit(world.app.url).netloc
    is_foreign = draw.random() < 0.5
    path = draw.choice((*ROUTES, *TRAVERSALS, "/" + "a" * draw.choice((10, 70_000))))
    if draw.random() < 0.3:
        path += ("&" if "?" in path else "?") + quote(draw.randbytes(draw.choice((5, 500))))
    if is_foreign:
        path = path.replace("/_stcore/health", "/")  # which is open to everybody
    method = draw.choice(METHODS)
    host = draw.choice(FOREIGN) if is_foreign and draw.random() < 0.6 else own
    headers = [f"Host: {host}"]
    if is_foreign and host == own:
        headers.append(f"Origin: {draw.choice(ELSEWHERE)}")
        method = draw.choice(("POST", "PUT", "DELETE", "GET"))
    headers += draw.choices(
        (
            "X-Long: " + "x" * draw.choice((100, 9_000, 200_000)), "Content-Length: -1", "Content-Length: 5",
            "Content-Length: 99999999999999999999", "Transfer-Encoding: chunked", "Transfer-Encoding: xchunked",
            "Upgrade: websocket\r\nConnection: Upgrade", "Upgrade: h2c", "Expect: 100-continue", "no colon at all",
            "Cookie: " + "a=b; " * 2000, "Accept-Encoding: " + "gzip, " * 500, "Range: bytes=0-1,-1,5-2,9999999999-",
            "Accept: text/html", "X-\0: y", " folded: z", "X-Forwarded-Host: evil.example", "Sec-WebSocket-Key: x",
        ),
        k=draw.randint(0, 4),
    )  # fmt: skip
    if draw.random() < 0.2:
        headers *= draw.choice((2, 60))
    body = draw.choice((b"", b"5\r\nhello\r\n0\r\n\r\n", draw.randbytes(300), b"0" * 70_000))
    raw = f"{method} {path} HTTP/{draw.choice(('1.1', '1.1', '1.0', '2', '9.9'))}\r\n".encode("latin-1")
    raw += "\r\n".join(headers).encode("latin-1", "replace") + b"\r\nConnection: close\r\n\r\n" + body
    return raw, is_foreign


def _exchange(world: World, raw: bytes) -> bytes:
    """What came back; empty where the server hung up. Raises Failure where it did neither in time."""
    answer = b""
    try:
        with socket.create_connection(world.app.address, timeout=MOST_S) as connection:
            connection.sendall(raw)
            # A half request may wait for its rest: this end says that there is none.
            connection.shutdown(socket.SHUT_WR)
            while (piece := connection.recv(1 << 16)) and len(answer) < 1 << 22:
                answer += piece
    except TimeoutError:
        raise Failure(f"neither answered nor hung up in {MOST_S:g} s; so far {answer[:100]!r}") from None
    except OSError:
        pass
    return answer


def _is_harmless(answer: bytes, is_foreign: bool) -> None:
    head = answer.partition(b"\r\n\r\n")[0].lower()
    status = head.split(b" ", 2)[1] if head.startswith(b"http/1") else b""
    if status[:1] == b"5":
        raise Failure(f"answered with an error of its own: {answer[:300]!r}")
    if b"access-control-allow-origin: *" in head or b"evil" in head:
        raise Failure(f"lets other pages read: {head[:300]!r}")
    if is_foreign and status[:1] in (b"2", b"3"):
        raise Failure(f"lets a page from elsewhere in: {answer[:200]!r}")
    if any(secret in answer for secret in SECRETS):
        raise Failure(f"gives a file of this machine: {answer[:200]!r}")


def _opened(world: World, path: str, origin: str | None) -> ClientConnection:
    return connect(
        f"ws://{urlsplit(world.app.url).netloc}{path}", origin=origin, subprotocols=["streamlit"],  # type: ignore[list-item, arg-type]
        open_timeout=MOST_S, close_timeout=1, max_size=None,
    )  # fmt: skip


def _is_refused(world: World, path: str, origin: str | None) -> None:
    """A socket of somebody else's does not open, or is closed before it says anything."""
    try:
        opened = _opened(world, path, origin)
    except InvalidHandshake:
        return
    except (OSError, WebSocketException) as error:
        raise Failure(f"was not refused in words but broke: {error!r}") from error
    with opened:
        try:
            opened.send(b"\x5a\x00" if "stream" in path else "{}")
            answer = opened.recv(timeout=2)
        except (TimeoutError, WebSocketException):
            return
        raise Failure(f"{path} answers {origin} with {answer[:60]!r}")


def _send_broken(opened: ClientConnection, draw: random.Random) -> None:
    jobs = {f"{number}": draw.choice((0, -1, 1 << 70, "x", None, 10**9)) for number in range(draw.choice((1, 3000)))}
    messages: tuple[str | bytes, ...] = (
        "", "{}", "[" * 100_000, json.dumps({"jobs": jobs}), json.dumps({"jobs": 5, "x": 1}), "\ud7ff" * 1000,
        draw.randbytes(draw.choice((1, 40, 5000))), b"\x5a" + bytes([200]) + draw.randbytes(60), b"\x00" * 70_000,
    )  # fmt: skip
    if draw.random() < 0.5:
        opened.send(draw.choice(messages))
        return
    opened.socket.sendall(draw.choice((*FRAMES, draw.randbytes(200))))
