"""Heartbeat page: shared memory in which a child reports that it is alive and its current phase to its parent.

The child never blocks on writing it, the parent may read it at any time, and the last values can still be read after
the child was killed. It holds no timestamps: the parent sees whether a counter has changed, and measures with its own
clock for how long it has not.
"""

import contextlib
import mmap
import os
import socket
import sys
import tempfile
import threading
import time
from typing import NamedTuple, Self

BEAT_S = 0.5
_PHASE_BITS = 4
_BEATS, _STAMPS, _WHAT = range(3)


class Reading(NamedTuple):
    """Beats and stamps so far, the number of the phase stamped last, and of the job it was for (0: none)."""

    num_beats: int
    num_stamps: int
    phase: int
    job: int


class Pulse:
    """The heartbeat page, mapped in both processes. One thread stamps, another beats; any thread may read."""

    def __init__(self, file: int) -> None:
        self._words = memoryview(mmap.mmap(file, mmap.PAGESIZE)).cast("Q")
        self._num_stamps = 0

    @classmethod
    def shared_over(cls, end: socket.socket, far: socket.socket | None = None) -> Self:
        """Create a page and send it to the child as the first message on `end`.

        far: a connection to another machine, which goes with it: the child's messages then take it instead of `end`.
        """
        with tempfile.TemporaryFile() if sys.platform != "linux" else open(os.memfd_create("pulse"), "wb") as file:
            file.truncate(mmap.PAGESIZE)
            socket.send_fds(end, [b"p"], [file.fileno(), *([] if far is None else [far.fileno()])])
            return cls(file.fileno())

    @classmethod
    def received_from(cls, end: socket.socket) -> Self:
        """Receive the parent's page, the first message on `end`. Raises EOFError when the parent has closed it."""
        return cls.received_with_far(end)[0]

    @classmethod
    def received_with_far(cls, end: socket.socket) -> tuple[Self, socket.socket | None]:
        """Receive as `received_from`, with the connection to another machine if one came; it ends once the program that
        started this one hangs up."""
        _message, files, _flags, _address = socket.recv_fds(end, 1, 2)
        if not files:
            raise EOFError("the other end of the channel is closed")
        page, *others = files
        try:
            far = socket.socket(fileno=others[0]) if others else None
            if far is not None:
                threading.Thread(target=_end_with, args=(end, far), daemon=True).start()
            return cls(page), far
        finally:
            os.close(page)

    def stamp(self, phase: int, job: int = 0) -> None:
        """Record the phase that begins now (a number below 16), and the job that it is for."""
        self._words[_WHAT] = job << _PHASE_BITS | phase
        self._num_stamps += 1
        self._words[_STAMPS] = self._num_stamps

    def keep_beating(self) -> None:
        """Start a thread that beats every BEAT_S seconds, as long as the process is alive and not stopped."""
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while True:
            self._words[_BEATS] += 1
            time.sleep(BEAT_S)

    def read(self) -> Reading:
        """Return the current values."""
        num_beats, num_stamps, what = self._words[:3]
        return Reading(num_beats, num_stamps, what & (1 << _PHASE_BITS) - 1, what >> _PHASE_BITS)


def _end_with(end: socket.socket, far: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.recv(1)
    with contextlib.suppress(OSError):
        far.shutdown(socket.SHUT_RDWR)
