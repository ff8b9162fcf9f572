"""Listener: the port on which agents and workers of other machines dial in, each with a token that is valid once."""

import contextlib
import hmac
import secrets
import selectors
import socket
import threading
import time
from concurrent.futures import Future
from typing import NamedTuple

from engine.errors import ConfigError

MARK = b"logitbench\x01"
TOKEN_BYTES = 32
HELLO_BYTES = len(MARK) + TOKEN_BYTES

MOST_PENDING = 64
"""Connections that may be open without having shown a token; the oldest gives way to the next one."""
PENDING_S = 5.0
"""How long a connection may take to show its token."""
DIAL_S = 25.0
"""How long a dial waits: longer than a network that stalls is waited for, but an agent hears nothing meanwhile."""
_PAUSE_S = 0.1
_KEEPALIVE_S, _INTERVAL_S, _NUM_PROBES = 10, 5, 4
_UNANSWERED_MS = 30_000


class _Pending(NamedTuple):
    shown: bytearray
    until: float


class Listener:
    """TCP listener on one address of this machine; closes every connection that does not show an expected token.

    Loopback, unless the cluster is authenticated by a token of its own: see `check_exposed`.
    """

    def __init__(self, host: str, port: int = 0) -> None:
        """Raises ConfigError where this machine has no such address."""
        try:
            self._socket = socket.create_server((host, port), backlog=128)
        except OSError as error:
            raise ConfigError(
                f"workers cannot dial in at {host} ({error}): the address that the cluster has for this machine must "
                "be one of its own"
            ) from error
        self._socket.setblocking(False)
        self.host, self.port = self._socket.getsockname()[:2]
        self._lock = threading.Lock()
        self._expected: dict[bytes, Future[socket.socket]] = {}
        self._pending: dict[socket.socket, _Pending] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        threading.Thread(target=self._run, name="logitbench-listener", daemon=True).start()

    def expect(self) -> tuple[bytes, "Future[socket.socket]"]:
        """Return a new token, and the future connection that shows it; `forget` it once nobody waits any more."""
        token = secrets.token_bytes(TOKEN_BYTES)
        future: Future[socket.socket] = Future()
        with self._lock:
            self._expected[token] = future
        return token, future

    def forget(self, token: bytes) -> None:
        """Accept this token no more; its future is cancelled if no connection has shown it."""
        with self._lock:
            future = self._expected.pop(token, None)
        if future is not None:
            future.cancel()

    @property
    def num_pending(self) -> int:
        """Number of connections that have not yet shown a token."""
        return len(self._pending)

    def close(self) -> None:
        """Close the port and every connection without a token; safe to call twice."""
        with contextlib.suppress(OSError):
            self._wake.close()

    def _run(self) -> None:
        """Accept and read until close(), which ends the wake-up connection."""
        while True:
            for key, _events in self._selector.select(timeout=1.0):
                if key.fileobj is self._woken:
                    self._end()
                    return
                if key.fileobj is self._socket:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._read(key.fileobj)
            now = time.monotonic()
            for late in [end for end, pending in self._pending.items() if pending.until < now]:
                self._drop(late)

    def _accept(self) -> None:
        try:
            end, _address = self._socket.accept()
        except BlockingIOError:
            return
        except OSError:  # no file is left to open, which would be asked again at once
            time.sleep(_PAUSE_S)
            return
        end.setblocking(False)
        if len(self._pending) >= MOST_PENDING:
            self._drop(next(iter(self._pending)))
        self._pending[end] = _Pending(bytearray(), time.monotonic() + PENDING_S)
        self._selector.register(end, selectors.EVENT_READ)

    def _read(self, end: socket.socket) -> None:
        """Read what a connection shows, and no byte more: what follows belongs to its reader."""
        pending = self._pending.get(end)
        if pending is None:
            return
        try:
            part = end.recv(HELLO_BYTES - len(pending.shown))
        except BlockingIOError:
            return
        except OSError:
            part = b""
        pending.shown.extend(part)
        if not part or not MARK.startswith(pending.shown[: len(MARK)]):
            self._drop(end)
        elif len(pending.shown) == HELLO_BYTES:
            self._selector.unregister(end)
            del self._pending[end]
            self._hand_over(end, bytes(pending.shown[len(MARK) :]))

    def _hand_over(self, end: socket.socket, shown: bytes) -> None:
        """Give a connection to whoever expects it; every token is compared, so that the time tells nothing."""
        with self._lock:
            matching = [token for token in self._expected if hmac.compare_digest(token, shown)]
            future = self._expected.pop(matching[0]) if matching else None
        if future is None or not future.set_running_or_notify_cancel():
            end.close()
            return
        with contextlib.suppress(OSError):  # it was reset meanwhile, as its reader will see
            end.setblocking(True)
            tune(end)
        future.set_result(end)

    def _drop(self, end: socket.socket) -> None:
        self._selector.unregister(end)
        del self._pending[end]
        end.close()

    def _end(self) -> None:
        for end in list(self._pending):
            self._drop(end)
        self._selector.close()
        self._socket.close()
        self._woken.close()
        with self._lock:
            expected, self._expected = self._expected, {}
        for future in expected.values():
            future.cancel()


def dial(host: str, port: int, token: bytes, within_s: float = DIAL_S) -> socket.socket:
    """Connect to a listener and show the token. Raises OSError."""
    end = socket.create_connection((host, port), timeout=within_s)
    try:
        end.sendall(MARK + token)
        end.settimeout(None)
        tune(end)
    except BaseException:
        end.close()
        raise
    return end


def tune(end: socket.socket) -> None:
    """Send small messages at once, and end a connection whose other machine has been unreachable for 30 s."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_S),
        ("TCP_KEEPINTVL", _INTERVAL_S),
        ("TCP_KEEPCNT", _NUM_PROBES),
        ("TCP_USER_TIMEOUT", _UNANSWERED_MS),
    ):
        if hasattr(socket, name):  # macOS lacks some
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def check_exposed(host: str, *, is_authenticated: bool) -> None:
    """Raise ConfigError for an address that other machines reach, unless Ray shows the cluster a token."""
    if host.startswith("127.") or is_authenticated:
        return
    raise ConfigError(
        f"the cluster reaches this machine at {host}, and Ray lets whoever reaches its ports run programs here: set "
        "RAY_AUTH_MODE=token on every node and here, or start it for this machine alone, see docs/cluster.md"
    )
