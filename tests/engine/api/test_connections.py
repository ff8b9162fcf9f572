"""Connections to a real uvicorn: those without a request end, those with one stay, and each kind has its quota."""

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from engine.api import peers
from engine.api.connections import Quota
from tests.engine.api.served import IDLE_S, PLENTY, WITHIN_S, Served, received, request

pytestmark = pytest.mark.slow

HEAD = b"POST /upload HTTP/1.1\r\nHost: 127.0.0.1:8501\r\nContent-Length: 90\r\n\r\n"
HEALTH = HEAD.replace(b"POST /upload", b"GET /_stcore/health")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts servers."""
    with ExitStack() as ends:

        def start(ours: Quota = PLENTY, others: Quota = PLENTY, access: str = "") -> Served:
            server = Served(tmp_path, ours, others, access)
            ends.callback(server.close)
            return server

        yield start


@contextmanager
def dripping(client: socket.socket, words: bytes) -> Iterator[None]:
    """The words arrive one after the other, again and again, until the connection is closed."""
    is_over = threading.Event()

    def drip() -> None:
        with suppress(OSError):
            for number in range(1_000_000):
                if is_over.wait(0.05):
                    return
                client.sendall(words[number % len(words) :][:1])

    thread = threading.Thread(target=drip)
    thread.start()
    yield
    is_over.set()
    thread.join(WITHIN_S)


@pytest.mark.parametrize("seed", range(3))
def test_what_sends_no_complete_request_is_closed(served: Callable[..., Served], seed: int) -> None:
    """Nothing, any part of a head, and the same after a request that was answered."""
    draw, server = random.Random(seed), served()
    with ExitStack() as ends:
        clients = []
        for _ in range(20):
            before = request("/") if draw.random() < 0.5 else b""
            clients.append(ends.enter_context(server.connect(before + HEAD[: draw.randrange(len(HEAD) - 4)])))
        for client in clients:
            received(client)
        assert received(ends.enter_context(server.connect(request("/"))), until=b"begi").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("before", [b"GET / HTTP/1.1\r\nX: ", HEAD, HEALTH], ids=["head", "body", "health"])
def test_what_sends_without_end_is_closed(served: Callable[..., Served], before: bytes) -> None:
    server = served()
    with server.connect(before) as client, dripping(client, b"x"):
        received(client)


@pytest.mark.parametrize("header", ["Accept: */*", "X-Forwarded-For: 203.0.113.9"])
def test_a_long_answer_is_not_cut(served: Callable[..., Served], header: str) -> None:
    server = served()
    with server.connect(request("/long", header)) as client, server.connect() as idle:
        assert received(client, until=b"be").endswith(b"be")
        assert received(idle) == b""
        time.sleep(IDLE_S)
        server.application.is_over = True
        assert received(client, until=b"begi") == b"gi"


def test_half_open_connections_do_not_keep_requests_out(served: Callable[..., Served]) -> None:
    server = served(ours=Quota(8, 3600.0))
    with ExitStack() as ends:
        long = ends.enter_context(server.connect(request("/long")))
        assert received(long, until=b"be")
        held = [ends.enter_context(server.connect(HEAD[:20])) for _ in range(200)]
        with server.connect(request("/")) as client:
            assert received(client, until=b"begi").endswith(b"begi")
        for client in held[:-4]:
            assert received(client) == b""
        server.application.is_over = True
        assert received(long, until=b"gi") == b"gi"


@pytest.mark.skipif(not peers.can_identify(), reason="this system does not tell whose a connection is")
@pytest.mark.parametrize("access", ["", "token", "open"])
@pytest.mark.parametrize("is_ours", [True, False])
def test_each_kind_of_user_has_its_quota(
    served: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, access: str, *, is_ours: bool
) -> None:
    monkeypatch.setattr(peers, "is_trusted", lambda _: is_ours)
    server = served(ours=Quota(12, 3600.0), others=Quota(4, 3600.0), access=access)
    most = 12 if is_ours or access == "open" else 4
    with ExitStack() as ends:
        for _ in range(most):
            assert received(ends.enter_context(server.connect(request("/long"))), until=b"be")
        assert received(ends.enter_context(server.connect(request("/")))) == b""
        assert server.application.num_asked == most
