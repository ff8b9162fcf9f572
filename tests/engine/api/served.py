"""A real uvicorn whose connections are limited, an application for it, and clients that speak bytes."""

import asyncio
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn

from engine.api.connections import Quota, limit
from engine.api.gate import Gate

IDLE_S = 2.0
WITHIN_S = 60.0
PLENTY = Quota(100, IDLE_S)


class Application:
    """Answers at once; `/long` begins at once and ends when it is let go; `/read` sends back the body."""

    def __init__(self) -> None:
        self.is_over = False
        self.num_asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        self.num_asked += 1
        if scope["path"] == "/read":
            await send_back(receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"be", "more_body": True})
        while scope["path"] == "/long" and not self.is_over:
            await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": b"gin"[:2]})


async def send_back(receive: Any, send: Any) -> None:
    """Send the body of a request as the answer."""
    body, is_open = b"", True
    while is_open:
        message = await receive()
        body, is_open = body + message["body"], message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


class Served:
    """A server in a thread of its own."""

    def __init__(self, home: Path, ours: Quota = PLENTY, others: Quota = PLENTY, access: str = "") -> None:
        self.application = Application()
        gate = Gate(self.application, access="open", home=home, address=lambda: "")
        self._server = uvicorn.Server(uvicorn.Config(gate, lifespan="off", log_config=None, timeout_keep_alive=3600))
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]

        async def serve() -> None:
            limit(asyncio.get_running_loop(), access=access, num_files=1 << 16, ours=ours, others=others)
            await self._server.serve(sockets=[listening])

        self._thread = threading.Thread(target=asyncio.run, args=(serve(),))
        self._thread.start()

    def connect(self, words: bytes = b"") -> socket.socket:
        """A connection that has sent these words, if the server did not close it before."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=WITHIN_S)
        with suppress(OSError):
            client.sendall(words)
        return client

    def close(self) -> None:
        """End every request and the server."""
        self.application.is_over = self._server.should_exit = True
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive()


def request(path: str, *more: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: 127.0.0.1:8501", *more, "", "")).encode()


def received(client: socket.socket, *, until: bytes | None = None) -> bytes:
    """What the server sends before it closes the connection, or up to some words; fails if it does neither."""
    words = b""
    with suppress(ConnectionError):
        while not (until and words.endswith(until)) and (more := client.recv(4096)):
            words += more
    return words
