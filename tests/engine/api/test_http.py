"""Requests to a real uvicorn: what has no end is refused, and what is complete is read alike however it is cut."""

import random
from collections.abc import Iterator

import pytest

from engine.api.connections import Quota
from tests.engine.api.served import Served, received, request

pytestmark = pytest.mark.slow

PLENTY = 1 << 20
"""Bytes, or repetitions, that are more than the bound and one read of the server."""
BOUND = 64 * 1024
"""Bytes of a head, of trailers and of what frames a chunk."""
HEAD = "POST /upload HTTP/1.1\r\nHost: 127.0.0.1:8501\r\n"
CHUNKED = HEAD + "Transfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "method": "X",
    "path": "GET /",
    "query": "GET /?",
    "name": HEAD + "X",
    "value": HEAD + "X: ",
    "length": HEAD + "Content-Length: 0",
    "size of a chunk": CHUNKED + "0",
    "extension of a chunk": CHUNKED + "4;x=",
    "extension of a later chunk": CHUNKED + "4\r\nabcd\r\n4;x=",
    "trailer": CHUNKED + "0\r\nX: ",
}
REPEATED = {"header": (HEAD, "X: y\r\n"), "trailer": (CHUNKED + "0\r\n", "X: y\r\n"), "empty line": ("", "\r\n")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that waits for requests for longer than any test."""
    one = Served(tmp_path_factory.mktemp("home"), Quota(100, 3600.0))
    yield one
    one.close()


def answered(server: Served, words: bytes) -> bytes:
    """What the server sends for these words until it closes the connection."""
    with server.connect(words) as client:
        return received(client)


@pytest.mark.parametrize("before", ENDLESS.values(), ids=ENDLESS)
def test_a_part_without_end_is_refused(server: Served, before: str) -> None:
    assert_refused(answered(server, before.encode() + b"x" * PLENTY))


@pytest.mark.parametrize(("before", "again"), REPEATED.values(), ids=REPEATED)
def test_parts_without_end_are_refused(server: Served, before: str, again: str) -> None:
    assert_refused(answered(server, (before + again * PLENTY).encode()))


def assert_refused(answer: bytes) -> None:
    """Assert that a connection ended as one that is refused.

    Nothing is answered where it was closed before all was read; a request whose body has no end may be answered before.
    """
    assert not answer or b" 400 " in answer or answer.count(b" 200 ") == 1


def test_a_head_below_the_bound_is_served(server: Served) -> None:
    answer = answered(server, request("/", "X: " + "x" * (BOUND - 1000), "Connection: close"))
    assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"begi")


@pytest.mark.parametrize("seed", range(10))
def test_a_request_is_read_alike_however_it_is_cut(server: Served, seed: int) -> None:
    draw = random.Random(seed)
    bodies = [bytes(draw.choices(b"ab", k=draw.randint(1, 90))) for _ in range(20)]
    parts = b"".join(b"%x;x=y\r\n%s\r\n" % (len(body), body) for body in bodies)
    head = CHUNKED.replace("/upload", "/read").replace("\r\n\r\n", "\r\nOrigin: http://127.0.0.1:8501\r\n\r\n")
    words = head.encode() + parts + b"0\r\nX: y\r\n\r\n"
    with server.connect() as client:
        start = 0
        while start < len(words):
            end = start + draw.randint(1, 40)
            client.sendall(words[start:end])
            start = end
        assert b"".join(bodies) in received(client, until=b"\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "head",
    [
        "CONNECT evil:443 HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "GET  HTTP/1.1",
        "GET / HTTP/9.9",
        "GET /\x80 HTTP/1.1",
        "PRI * HTTP/2.0",
    ],
)
def test_strange_requests_are_answered_or_refused(server: Served, head: str) -> None:
    answer = answered(server, f"{head}\r\nHost: 127.0.0.1:8501\r\nConnection: close\r\n\r\n".encode("latin-1"))
    assert answer.startswith(b"HTTP/1.1 ") and b" 500 " not in answer
    assert b" 200 " in answered(server, request("/", "Connection: close"))
