"""A page of memory in which a child says that it lives and what it is at, and that its parent reads at any time.

The child never waits to write it, and what it wrote last can be read after it was killed. No clock is in it: the parent
sees whether a count has changed and measures by its own clock for how long it has not.
"""

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
    """Beats and stamps so far; the number of the phase that was stamped last, and of the job it was for (0: none)."""

    num_beats: int
    num_stamps: int
    phase: int
    job: int


class Pulse:
    """The page, in both processes. One thread stamps, another beats; anybody reads."""

    def __init__(self, file: int) -> None:
        self._words = memoryview(mmap.mmap(file, mmap.PAGESIZE)).cast("Q")
        self._num_stamps = 0

    @classmethod
    def shared_over(cls, end: socket.socket) -> Self:
        """A new page, and the first message on `end`: the page, for the child to receive."""
        with tempfile.TemporaryFile() if sys.platform != "linux" else open(os.memfd_create("pulse"), "wb") as file:
            file.truncate(mmap.PAGESIZE)
            socket.send_fds(end, [b"p"], [file.fileno()])
            return cls(file.fileno())

    @classmethod
    def received_from(cls, end: socket.socket) -> Self:
        """The parent's page, which must be the first message on `end`. Raises EOFError when the parent is gone."""
        _message, files, _flags, _address = socket.recv_fds(end, 1, 1)
        if not files:
            raise EOFError("the other end of the channel is closed")
        try:
            return cls(files[0])
        finally:
            os.close(files[0])

    def stamp(self, phase: int, job: int = 0) -> None:
        """Say what begins now: a phase below 16, and the job that it is for."""
        self._words[_WHAT] = job << _PHASE_BITS | phase
        self._num_stamps += 1
        self._words[_STAMPS] = self._num_stamps

    def keep_beating(self) -> None:
        """Beat every BEAT_S seconds from a thread of its own, as long as the process lives and is not stopped."""
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while True:
            self._words[_BEATS] += 1
            time.sleep(BEAT_S)

    def read(self) -> Reading:
        """What is there now."""
        num_beats, num_stamps, what = self._words[:3]
        return Reading(num_beats, num_stamps, what & (1 << _PHASE_BITS) - 1, what >> _PHASE_BITS)
