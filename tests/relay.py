"""A TCP relay for tests that stops forwarding as a network does that stalls: nothing is lost, refused or closed."""

import contextlib
import socket
import threading
import time
from typing import Literal, Self

Way = Literal["up", "down"]
"""up: from those who dial the relay; down: to them."""


class Relay:
    """Relay from a port of its own to another one of this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._changed = threading.Condition()
        self._stalled = frozenset[Way]()
        self._stalled_at = 0.0
        self._ends: list[socket.socket] = []
        self._is_over = False
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self, *ways: Way) -> None:
        """Forward nothing more these ways, nor that an end was closed."""
        with self._changed:
            self._stalled, self._stalled_at = frozenset(ways), time.monotonic()

    def stalled_s(self) -> float:
        """Return the seconds since `stall`."""
        return time.monotonic() - self._stalled_at

    def resume(self) -> None:
        """Forward what has come meanwhile, and go on."""
        with self._changed:
            self._stalled = frozenset()
            self._changed.notify_all()

    def close(self) -> None:
        """Close the port and every connection."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
            ends = [self._server, *self._ends]
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _address = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                with self._changed:
                    self._ends += [near, far]
                for source, sink, way in ((near, far, "up"), (far, near, "down")):
                    threading.Thread(target=self._forward, args=(source, sink, way), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, way: Way) -> None:
        with contextlib.suppress(OSError):
            while True:
                block = self._received(source)
                with self._changed:
                    self._changed.wait_for(lambda: way not in self._stalled or self._is_over)
                if not block:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(block)

    def _received(self, source: socket.socket) -> bytes:
        try:
            return source.recv(1 << 16)
        except ConnectionError:
            return b""
