"""Workers that stand still: noticed by a beat that stays away and by a phase that does not end, then ended."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from engine.llama.phase import LONGEST_S, Phase
from engine.process.pulse import Reading

TICK_S = 0.25
SILENCE_S = 5.0
"""A worker without a beat for so long is stopped: by a signal, a debugger, or a machine that has no memory left."""

LOADING_SILENCE_S = 30.0
"""While it loads: pages of the file come from the disk, on a full machine instead of pages of the program."""


class Watch:
    """How long one worker has been in its phase (`phase_s`) and without a beat (`silent_s`), in seconds that this
    process saw pass."""

    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read
        self.last = read()
        self.phase_s = self.silent_s = 0.0

    @property
    def phase(self) -> Phase:
        """What the worker was at when it was looked at last."""
        return Phase(self.last.phase)

    def look(self, elapsed_s: float) -> str:
        """Read again, `elapsed_s` after the last time; gives why the worker must be ended, or nothing.

        The reason is the rest of a sentence that begins with the worker.
        """
        before, self.last = self.last, self._read()
        self.silent_s = self.silent_s + elapsed_s if self.last.num_beats == before.num_beats > 0 else 0.0
        self.phase_s = self.phase_s + elapsed_s if self.last.num_stamps == before.num_stamps else 0.0
        phase = self.phase
        if self.silent_s > (LOADING_SILENCE_S if phase == Phase.LOADING else SILENCE_S):
            return (
                f"gave no sign of life for {self.silent_s:.0f} s and was ended: it was stopped from outside, or starved"
            )
        if self.phase_s > LONGEST_S.get(phase, float("inf")):
            return f"stood still for {self.phase_s:.1f} s, where {LONGEST_S[phase]:g} s are allowed, and was ended"
        return ""


class Watched(Protocol):
    """A worker as the watchdog knows it."""

    @property
    def watch(self) -> Watch: ...

    def stall(self, reason: str) -> None:
        """End the worker, which stands still."""


def keep_watch(workers: Callable[[], Iterable[Watched]], is_over: threading.Event) -> None:
    """Look at the workers every TICK_S until it is over; from a thread of its own."""
    before = time.monotonic()
    while not is_over.wait(TICK_S):
        now = time.monotonic()
        look_at_all(workers(), now - before)
        before = now


def look_at_all(workers: Iterable[Watched], elapsed_s: float) -> None:
    """Look once, `elapsed_s` after the last time, and end those that stand still.

    Where that is longer than planned, this process did not run, suspended or starved, and the workers may not have
    either: no more than two ticks of it count.
    """
    for worker in workers:
        if reason := worker.watch.look(min(elapsed_s, 2 * TICK_S)):
            worker.stall(reason)
