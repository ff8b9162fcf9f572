"""The port on which agents and workers dial in: what shows no token is closed, and shuts nobody out."""

import contextlib
import errno
import secrets
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from engine.cluster import listener as listening
from engine.cluster.listener import HELLO_BYTES, MARK, MOST_PENDING, TOKEN_BYTES, Listener, check_exposed, dial
from engine.errors import ConfigError
from tests.waiting import until


@pytest.fixture
def listener() -> Iterator[Listener]:
    with contextlib.closing(Listener("127.0.0.1")) as one:
        yield one


def connected(listener: Listener) -> socket.socket:
    end = socket.create_connection((listener.host, listener.port), timeout=60)
    end.settimeout(60)
    return end


def is_closed(end: socket.socket) -> bool:
    try:
        return end.recv(1) == b""
    except ConnectionError:
        return True


def test_an_expected_token_opens_a_connection_in_both_directions(listener: Listener) -> None:
    token, dialled = listener.expect()
    with dial(listener.host, listener.port, token) as far, dialled.result(60) as near:
        far.sendall(b"up")
        near.sendall(b"down")
        assert (near.recv(2), far.recv(4)) == (b"up", b"down")
        assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_what_follows_the_token_is_left_to_its_reader(listener: Listener) -> None:
    token, dialled = listener.expect()
    with connected(listener) as far:
        far.sendall(MARK + token + b"first message")
        with dialled.result(60) as near:
            assert near.recv(13) == b"first message"


def test_a_token_is_valid_once(listener: Listener) -> None:
    token, dialled = listener.expect()
    with (
        dial(listener.host, listener.port, token),
        dialled.result(60),
        dial(listener.host, listener.port, token) as again,
    ):
        assert is_closed(again)


@pytest.mark.parametrize(
    "shown",
    [
        MARK + secrets.token_bytes(TOKEN_BYTES),
        b"GET / HTTP/1.1\r\n\r\n",
        MARK[:-1] + b"\x07" + bytes(TOKEN_BYTES),
        bytes(HELLO_BYTES),
    ],
    ids=["another token", "HTTP", "another version", "zeros"],
)
def test_a_stranger_is_refused_and_the_expected_one_still_comes_in(listener: Listener, shown: bytes) -> None:
    token, dialled = listener.expect()
    with connected(listener) as stranger:
        stranger.sendall(shown)
        assert is_closed(stranger)
    with dial(listener.host, listener.port, token), dialled.result(60):
        assert listener.num_pending == 0


def test_a_stranger_that_says_nothing_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "PENDING_S", 0.1)
    with (
        contextlib.closing(Listener("127.0.0.1")) as listener,
        connected(listener) as silent,
        connected(listener) as slow,
    ):
        slow.sendall(MARK)
        assert is_closed(silent) and is_closed(slow)


def test_many_strangers_do_not_shut_out_the_expected_one(listener: Listener) -> None:
    token, dialled = listener.expect()
    with contextlib.ExitStack() as held:
        strangers = [held.enter_context(connected(listener)) for _ in range(MOST_PENDING + 5)]
        until(lambda: listener.num_pending == MOST_PENDING, "not as many are held as may be")
        assert all(is_closed(stranger) for stranger in strangers[:5])
        with dial(listener.host, listener.port, token), dialled.result(60):
            pass


def test_a_connection_that_is_reset_at_the_wrong_moment_ends_nobody_else(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reset(_end: socket.socket) -> None:
        raise ConnectionResetError

    token, dialled = listener.expect()
    with monkeypatch.context() as patch:
        patch.setattr(listening, "tune", reset)
        with connected(listener) as far:
            far.sendall(MARK + token)
            dialled.result(60).close()
    token, dialled = listener.expect()
    with dial(listener.host, listener.port, token), dialled.result(60):
        pass


def test_where_no_file_is_left_to_open_the_next_one_still_comes_in(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, refused = socket.socket.accept, threading.Event()

    def full(server: socket.socket) -> Any:
        if refused.is_set():
            return accept(server)
        refused.set()
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(socket.socket, "accept", full)
    token, dialled = listener.expect()
    with dial(listener.host, listener.port, token), dialled.result(60):
        assert refused.is_set()


def test_nobody_is_awaited_after_it_was_forgotten_or_the_port_closed(listener: Listener) -> None:
    token, dialled = listener.expect()
    listener.forget(token)
    with dial(listener.host, listener.port, token) as late:
        assert is_closed(late)
    _token, never = listener.expect()
    listener.close()
    for future in (dialled, never):
        with pytest.raises(CancelledError):
            future.result(60)


def test_other_machines_are_let_in_only_with_a_token_of_the_cluster() -> None:
    check_exposed("127.0.0.1", is_authenticated=False)
    check_exposed("10.0.0.7", is_authenticated=True)
    with pytest.raises(ConfigError, match="RAY_AUTH_MODE=token"):
        check_exposed("10.0.0.7", is_authenticated=False)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of its own"):
        Listener("192.0.2.77")
