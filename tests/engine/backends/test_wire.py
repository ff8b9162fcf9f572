"""Connections to a server: what is in order is read to its end and reused; what is no HTTP fails its request."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from engine.backends import wire
from engine.backends.wire import Wire
from tests.waiting import in_loop

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"2\r\nhe\r\n03 ; name=value\r\nllo\r\n0\r\nTrailer: x\r\n\r\n"


def answered(
    *parts: bytes, num_requests: int = 1, closes: bool = False, arrived: list[bytes] | None = None
) -> tuple[list[bytes], int]:
    """Ask a server that answers each request with these bytes; give the contents, and how many connections it saw.

    arrived: what the client has received; each part then waits until the one before it is there.
    """
    num_connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(4)
                for part in parts:
                    num_arrived = len(arrived or ())
                    writer.write(part)
                    await writer.drain()
                    while arrived is not None and len(arrived) == num_arrived:
                        await asyncio.sleep(0)
                if closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def ask() -> list[bytes]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with server, httpx2.AsyncClient(transport=Wire(10)) as client:
            return [(await client.post(address, content=b"body")).content for _ in range(num_requests)]

    return in_loop(ask()), num_connections


@pytest.mark.parametrize(
    "parts",
    [
        (HEAD + b"Content-Length: 5\r\n\r\nhello",),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nh", b"e\r\n3;name=value\r\nllo\r\n0\r\nTrailer: x\r\n\r\n"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", HEAD + b"Content-Length: 5\r\n\r\n", b"hello"),
    ],
)
def test_a_connection_serves_one_request_after_another(parts: tuple[bytes, ...]) -> None:
    assert answered(*parts, num_requests=3) == ([b"hello"] * 3, 1)


def test_an_answer_may_end_with_its_connection() -> None:
    assert answered(HEAD + b"\r\nhello", num_requests=2, closes=True) == ([b"hello"] * 2, 2)


def test_a_kept_connection_that_the_server_closes_is_replaced() -> None:
    answer = HEAD + b"Content-Length: 5\r\n\r\nhello"
    assert answered(answer, num_requests=5, closes=True) == ([b"hello"] * 5, 5)


def test_a_connection_with_more_than_its_answer_is_not_used_again() -> None:
    answer = HEAD + b"Content-Length: 5\r\n\r\nhello" + HEAD
    assert answered(answer, num_requests=2) == ([b"hello"] * 2, 2)


def test_more_than_is_kept_unread_comes_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST_UNREAD_BYTES", 1000)
    content = bytes(range(256)) * 4000
    assert answered(HEAD + b"Content-Length: %d\r\n\r\n" % len(content), content) == ([content], 1)


@pytest.mark.parametrize(
    "parts",
    [
        (b"SSH-2.0-OpenSSH_9\r\n\r\n",),
        (HEAD + b"Content-Length: 9\r\n\r\nhello",),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello",),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n",),
        (HEAD + b"X: " + b"x" * (200 << 10),),
        (),
    ],
)
def test_what_is_no_http_or_is_cut_fails_the_request(parts: tuple[bytes, ...]) -> None:
    with pytest.raises((httpx2.RemoteProtocolError, httpx2.ReadError)):
        answered(*parts, closes=True)


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What clients have received, growing."""
    parts, receive = list[bytes](), wire._Connection.data_received

    def seen(connection: wire._Connection, data: bytes) -> None:
        receive(connection, data)
        parts.append(data)

    monkeypatch.setattr(wire._Connection, "data_received", seen)
    return parts


def test_chunks_may_come_in_two_parts_cut_anywhere(arrived: list[bytes]) -> None:
    for cut in range(1, len(CHUNKS)):
        parts = (CHUNKED + CHUNKS[:cut], CHUNKS[cut:])
        assert answered(*parts, num_requests=2, arrived=arrived) == ([b"hello"] * 2, 1), CHUNKS[:cut]


def test_an_answer_may_come_byte_by_byte(arrived: list[bytes]) -> None:
    parts = [bytes([byte]) for byte in CHUNKED + CHUNKS]
    assert answered(*parts, num_requests=2, arrived=arrived) == ([b"hello"] * 2, 1)


def test_chunks_that_end_early_fail_the_request_wherever_they_end(arrived: list[bytes]) -> None:
    for end in range(len(CHUNKS)):
        with pytest.raises(httpx2.RemoteProtocolError):
            answered(CHUNKED + CHUNKS[:end], closes=True, arrived=arrived)


SELF_SIGNED = Path(__file__).with_name("self_signed.pem")
"""A key of these tests and its certificate for 127.0.0.1, which nobody else has signed; valid for a hundred years."""


def answered_securely() -> bytes:
    """Ask a server that has the certificate SELF_SIGNED; give the content of its answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD + b"Content-Length: 5\r\n\r\nhello")
            await writer.drain()
        writer.close()

    async def ask() -> bytes:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(SELF_SIGNED)
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        address = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with server, httpx2.AsyncClient(transport=Wire(10)) as client:
            return (await client.get(address)).content

    return in_loop(ask())


def test_a_certificate_that_nobody_has_signed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(httpx2.ConnectError, match="certificate"):
        answered_securely()
    monkeypatch.setenv("SSL_CERT_FILE", str(SELF_SIGNED))
    assert answered_securely() == b"hello"
