"""Outgoing messages: sent in order from any thread, which never waits until the other end reads them."""

import contextlib
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

_log = logging.getLogger(__name__)


class Sends(Protocol):
    """The sending half of engine.process.channel.Channel, which documents its methods."""

    def encoded(self, message: Any) -> memoryview: ...

    def offer(self, frame: memoryview) -> memoryview: ...

    def finish(self, frame: memoryview) -> None: ...


class Outgoing:
    """Messages to the other end of a channel, on whose end its reader reports. Any thread may call it.

    A message is sent by the thread that has it, as far as the socket takes it at once: handing each to another thread
    would have it wait until that one runs, which takes as long as the first one goes on. What is left is sent by a
    thread of its own. on_defect: called for a message that cannot be encoded, because of a defect, and that thus never
    gets an answer.
    """

    def __init__(self, channel: Sends, on_defect: Callable[[], object]) -> None:
        self._channel, self._on_defect = channel, on_defect
        self._lock = threading.Lock()
        self._late: SimpleQueue[memoryview | None] = SimpleQueue()
        self._num_late = 0
        threading.Thread(target=self._finish, daemon=True).start()

    def send(self, message: Any) -> None:
        """Send a message after all earlier ones; does not block, and has no effect once the other end is closed."""
        with self._lock, contextlib.suppress(OSError):
            try:
                frame = self._channel.encoded(message)
            except (TypeError, ValueError, OverflowError):
                _log.exception("a message to another process could not be written")
                self._on_defect()
                return
            rest = frame if self._num_late else self._channel.offer(frame)
            if rest:
                self._num_late += 1
                self._late.put(rest)

    def close(self) -> None:
        """End the thread once it has sent what is left. Safe to call twice."""
        self._late.put(None)

    def _finish(self) -> None:
        with contextlib.suppress(OSError):
            while (rest := self._late.get()) is not None:
                self._channel.finish(rest)
                with self._lock:
                    self._num_late -= 1
