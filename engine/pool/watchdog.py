"""Watchdog: detects hung workers by a missing heartbeat or a phase that takes too long, and kills them."""

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from engine.llama.phase import LONGEST_S, Phase
from engine.process.pulse import Reading

TICK_S = 0.25
SILENCE_S = 5.0
"""A worker without a heartbeat for this long is stopped: by a signal, a debugger, or a machine out of memory."""

LOADING_SILENCE_S = 60.0
"""Limit until the first heartbeat and while loading: libraries and pages of the file come from a possibly slow disk.
SILENCE_S is the limit of one that a signal has suspended."""


class Watch:
    """Timer of one worker: seconds in its current phase (`phase_s`) and without a heartbeat (`silent_s`), as counted by
    this process. is_suspended: asks the system whether a signal keeps the worker from running. read: its heartbeat, or
    None while nothing is known of it, as its machine cannot be reached: such time does not count."""

    def __init__(self, read: Callable[[], Reading | None], is_suspended: Callable[[], bool]) -> None:
        self._read, self._is_suspended = read, is_suspended
        self.last = read() or Reading(0, 0, 0, 0)
        self.phase_s = self.silent_s = 0.0

    @property
    def phase(self) -> Phase:
        """Phase of the worker at the last look."""
        return Phase(self.last.phase)

    def look(self, elapsed_s: float) -> str:
        """Read again, `elapsed_s` after the last time; return the reason to kill the worker, or an empty string.

        The reason is the predicate of a sentence whose subject is the worker.
        """
        reading = self._read()
        if reading is None:
            return ""
        before, self.last = self.last, reading
        self.silent_s = self.silent_s + elapsed_s if self.last.num_beats == before.num_beats else 0.0
        self.phase_s = self.phase_s + elapsed_s if self.last.num_stamps == before.num_stamps else 0.0
        if self.silent_s > SILENCE_S and self.silent_s > self._longest_silence_s():
            return (
                f"sent no heartbeat for {self.silent_s:.0f} s and was killed: it was suspended or starved of CPU time"
            )
        if self.phase_s > (longest_s := LONGEST_S.get(reading.phase, math.inf)):
            return f"hung for {self.phase_s:.1f} s (limit {longest_s:g} s) and was killed"
        return ""

    def _longest_silence_s(self) -> float:
        is_loading = not self.last.num_beats or self.phase == Phase.LOADING
        return LOADING_SILENCE_S if is_loading and not self._is_suspended() else SILENCE_S


class Watched(Protocol):
    """Interface of a worker as the watchdog sees it."""

    @property
    def watch(self) -> Watch: ...

    def stall(self, reason: str) -> None:
        """Kill the hung worker."""


def keep_watch(workers: Callable[[], Iterable[Watched]], is_over: threading.Event) -> None:
    """Check the workers every TICK_S until `is_over` is set; to be run in a thread of its own."""
    before = time.monotonic()
    while not is_over.wait(TICK_S):
        now = time.monotonic()
        look_at_all(workers(), now - before)
        before = now


def look_at_all(workers: Iterable[Watched], elapsed_s: float) -> None:
    """Check all workers once, `elapsed_s` after the last time, and kill those that hang.

    If more time has passed than planned, this process was suspended or starved, and the workers may have been too: at
    most two ticks of it count.
    """
    for worker in workers:
        if reason := worker.watch.look(min(elapsed_s, 2 * TICK_S)):
            worker.stall(reason)
