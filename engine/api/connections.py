"""Connections: how many may be open at once, and how long one may stay open without a request.

uvicorn limits requests (`limit_concurrency`) and the time between two of them (`timeout_keep_alive`), but a connection
that never completes a request head stays open for as long as its client likes, and holds a file descriptor.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, Self

from engine.api import peers


class Quota(NamedTuple):
    """Limits on the connections of one kind of user.

    most: connections open at once. idle_s: seconds that a connection may be open without a request in progress.
    """

    most: int
    idle_s: float

    def within(self, num_files: int) -> Self:
        """Return this quota, with no more connections than `num_files`."""
        return self._replace(most=min(self.most, num_files))


OURS = Quota(most=512, idle_s=10.0)
"""Of our own user, of root, and of those whose user cannot be determined."""
OTHERS = Quota(most=32, idle_s=3.0)
"""Of all other users together: they may ask for the health check, with a token for more."""


class Connections:
    """Open connections under one quota; used on the thread of the event loop.

    Half of the quota may wait for a request: one more, and that which has waited longest is closed. So connections that
    never send a request do not keep out those that do.
    """

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._open: set[socket.socket] = set()
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}

    def admit(self, peer: socket.socket) -> bool:
        """Count a new connection and return True; False if the quota is used up."""
        if len(self._open) >= self._quota.most:
            self._open = {each for each in self._open if _is_open(each)}
        if len(self._open) >= self._quota.most:
            return False
        self._open.add(peer)
        self._wait(peer)
        return True

    @contextmanager
    def request(self, peer: socket.socket) -> Iterator[None]:
        """Keep the connection open for as long as the block lasts."""
        self._stop_waiting(peer)
        try:
            yield
        finally:
            self._wait(peer)

    def _wait(self, peer: socket.socket) -> None:
        if not _is_open(peer):
            return
        self._waiting[peer] = asyncio.get_running_loop().call_later(self._quota.idle_s, self._hang_up, peer)
        if len(self._waiting) > self._quota.most // 2:
            for closed in [each for each in self._waiting if not _is_open(each)]:
                self._stop_waiting(closed)
        if len(self._waiting) > self._quota.most // 2:
            self._hang_up(next(iter(self._waiting)))

    def _stop_waiting(self, peer: socket.socket) -> None:
        if timer := self._waiting.pop(peer, None):
            timer.cancel()

    def _hang_up(self, peer: socket.socket) -> None:
        """End the connection as if its client had: the server sends what it still has to send, and closes it."""
        self._stop_waiting(peer)
        with suppress(OSError):
            peer.shutdown(socket.SHUT_RD)


class Listener(socket.socket):
    """Listening socket, in place of the given one, whose `accept` admits connections to `ours` or to `others`."""

    def __init__(self, listening: socket.socket, access: str, ours: Connections, others: Connections) -> None:
        super().__init__(fileno=listening.detach())
        self._access, self._ours, self._others = access, ours, others
        self._has_had_its_turn = False

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection, as asyncio calls it: until it raises, whenever a connection has arrived.

        Each turn of the event loop gets one, however many have arrived: those that `Connections` hangs up on are closed
        by later turns. Raises ConnectionAbortedError after refusing one.
        """
        self._has_had_its_turn = not self._has_had_its_turn
        if not self._has_had_its_turn:
            raise BlockingIOError("the next connection waits for the next turn of the event loop")
        peer, address = super().accept()
        connections = self._others if self._is_of_another_user(peer, address) else self._ours
        if not connections.admit(peer):
            peer.close()
            raise ConnectionAbortedError("refused: too many connections are open")
        _current.set((connections, peer))
        return peer, address

    def _is_of_another_user(self, peer: socket.socket, address: Any) -> bool:
        if self._access == "open":
            return False
        uid = peers.uid_of(address[:2], peer.getsockname()[:2])
        return uid is not None and not peers.is_trusted(uid)


# asyncio handles each connection in a copy of the context in which it was accepted. The peer's address does not tell
# which connection a request came by: uvicorn replaces it with that of the header X-Forwarded-For.
_current: ContextVar[tuple[Connections, socket.socket] | None] = ContextVar("connection", default=None)


@contextmanager
def in_request() -> Iterator[None]:
    """Keep the connection that this request came by open for as long as the block lasts."""
    if current := _current.get():
        connections, peer = current
        with connections.request(peer):
            yield
    else:
        yield


def limit(
    loop: asyncio.AbstractEventLoop, *, access: str, num_files: int, ours: Quota = OURS, others: Quota = OTHERS
) -> None:
    """Limit the connections of every server that this event loop, one of asyncio's own, starts from now on.

    access: the setting `access`; "open" makes no difference between users. num_files: open files that this process may
    have, of which connections get at most a third.
    """
    create_server = loop.create_server
    of_ours, of_others = Connections(ours.within(num_files // 4)), Connections(others.within(num_files // 16))

    async def create_limited_server(factory: Callable[[], Any], *, sock: socket.socket, **options: Any) -> Any:
        return await create_server(factory, sock=Listener(sock, access, of_ours, of_others), **options)

    loop.create_server = create_limited_server  # type: ignore[method-assign, assignment]


def _is_open(peer: socket.socket) -> bool:
    return peer.fileno() >= 0
