"""Quietness: whether other programs, or the host, use the processors now."""

import math
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from engine.bench.measuring.surroundings import OTHER_SHARE, STEAL_SHARE, Watch
from engine.pool.placement import num_cores
from engine.tasks import Task
from engine.units import cores, percent

LEAST_S, MOST_S = 1.0, 30.0
"""Seconds that a reading covers: of less the figures jump, and what was longer ago is not now."""

READING_S, QUIET_READINGS = 2.0, 3
"""Who waits for a quiet machine waits for so many quiet readings in a row, of so many seconds each."""


class Quietness(NamedTuple):
    """Cores that other programs used, of so many that this process may use; the share of time that the host took.

    programs: those cores by name, most first; empty where not known. Figures that the system does not tell are NaN.
    """

    other_cores: float
    num_cores: int
    steal_share: float
    programs: Mapping[str, float]

    @property
    def is_quiet(self) -> bool:
        """True where a sample taken now would be clean; what is not known does not disturb."""
        is_crowded = self.other_cores > OTHER_SHARE * self.num_cores
        return not is_crowded and not self.steal_share > STEAL_SHARE

    @property
    def sentence(self) -> str:
        """What uses the machine, in words."""
        if self.is_quiet:
            if math.isnan(self.other_cores):
                return "How busy the machine is cannot be read here."
            return f"Quiet: other programs use {percent(self.other_cores / self.num_cores)} of the processors."
        return f"Not quiet: {self.busy_with}."

    @property
    def busy_with(self) -> str:
        """What disturbs, as a clause."""
        if self.steal_share > STEAL_SHARE and not self.other_cores > OTHER_SHARE * self.num_cores:
            return f"the host takes {percent(self.steal_share)} of the processors' time"
        if not self.programs:
            return f"other programs use {cores(self.other_cores)}"
        named = [f"{name} uses {cores(used)}" for name, used in self.programs.items()]
        return " and ".join(part for part in (", ".join(named[:-1]), named[-1]) if part)


class QuietMeter:
    """Readings of quietness, each since the one before. Any thread may call it; it never waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watch: Watch | None = None
        self._began = -math.inf
        self._last: Quietness | None = None

    def read(self) -> Quietness | None:
        """The machine since the reading before; None at first, and where that was longer than MOST_S ago."""
        with self._lock:
            now = time.monotonic()
            if self._watch is not None and now - self._began < LEAST_S:
                return self._last
            self._last = None
            if self._watch is not None:
                self._watch.__exit__()
                if now - self._began <= MOST_S:
                    self._last = quietness_of(self._watch)
            self._watch, self._began = Watch().__enter__(), now
            return self._last


def quietness_of(watch: Watch) -> Quietness:
    """What a watch saw."""
    values = watch.values()
    return Quietness(values["other_cores"], num_cores(), values["steal_share"], watch.programs())


def wait_for_quiet(task: Task[object]) -> None:
    """Return once QUIET_READINGS in a row were quiet; meanwhile the task says what it waits for.

    Raises Stopped where somebody ends the task.
    """
    num_quiet = 0
    while num_quiet < QUIET_READINGS:
        with Watch() as watch:
            task.sleep(READING_S)
        task.check()
        now = quietness_of(watch)
        num_quiet = num_quiet + 1 if now.is_quiet else 0
        task.waits_for = "" if now.is_quiet else now.busy_with
