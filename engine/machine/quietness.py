"""Quietness check: detects whether other programs, or the host, are using the processors."""

import math
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from engine.jsonable import figure
from engine.machine.cores import num_cores
from engine.machine.noise import OTHER_SHARE, STEAL_SHARE, NoiseWatch
from engine.tasks import Task
from engine.units import cores, percent

LEAST_S, MOST_S = 1.0, 30.0
"""Seconds that a reading covers: figures of shorter ones are erratic, and longer ones do not describe the present."""

READING_S, QUIET_READINGS = 2.0, 3
"""A machine counts as quiet after QUIET_READINGS consecutive quiet readings of READING_S seconds each."""


class Quietness(NamedTuple):
    """Outside load: cores used by other programs, cores this process may use, share of time taken by the host.

    programs: the used cores by name, highest first; empty where unknown. Figures that the system does not report are
    NaN.
    """

    other_cores: float
    num_cores: int
    steal_share: float
    programs: Mapping[str, float]

    @property
    def is_quiet(self) -> bool:
        """True where a sample taken now would be clean; unknown figures do not count as disturbance."""
        is_crowded = self.other_cores > OTHER_SHARE * self.num_cores
        return not is_crowded and not self.steal_share > STEAL_SHARE

    @property
    def sentence(self) -> str:
        """Current use of the machine, in words."""
        if self.is_quiet:
            if math.isnan(self.other_cores):
                return "The machine's load cannot be read on this system."
            return f"Quiet: other programs use {percent(self.other_cores / self.num_cores)} of the CPU."
        return f"Not quiet: {self.busy_with}."

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        shares = {"other_cores": figure(self.other_cores), "steal_share": figure(self.steal_share)}
        about = {"is_quiet": self.is_quiet, "sentence": self.sentence, "num_cores": self.num_cores}
        return {**about, **shares, "programs": dict(self.programs)}

    @property
    def busy_with(self) -> str:
        """Cause of the disturbance, as a clause."""
        if self.steal_share > STEAL_SHARE and not self.other_cores > OTHER_SHARE * self.num_cores:
            return f"the host takes {percent(self.steal_share)} of the CPU time"
        if not self.programs:
            return f"other programs use {cores(self.other_cores)}"
        named = [f"{name} uses {cores(used)}" for name, used in self.programs.items()]
        return " and ".join(part for part in (", ".join(named[:-1]), named[-1]) if part)


class QuietMeter:
    """Meter of quietness; a reading covers the time since the previous one. Callable from any thread; never waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watch: NoiseWatch | None = None
        self._began = -math.inf
        self._last: Quietness | None = None

    def read(self) -> Quietness | None:
        """Return the quietness since the previous reading; None at first, and where that was longer than MOST_S ago.

        Repeats the previous result where that reading began less than LEAST_S ago.
        """
        with self._lock:
            now = time.monotonic()
            if self._watch is not None and now - self._began < LEAST_S:
                return self._last
            self._last = None
            if self._watch is not None:
                self._watch.__exit__()
                if now - self._began <= MOST_S:
                    self._last = quietness_of(self._watch)
            self._watch, self._began = NoiseWatch().__enter__(), now
            return self._last


def quietness_now() -> Quietness:
    """Watch the machine for LEAST_S and return how quiet it was."""
    with NoiseWatch() as watch:
        time.sleep(LEAST_S)
    return quietness_of(watch)


def quietness_of(watch: NoiseWatch) -> Quietness:
    """Return the quietness that a watch recorded."""
    values = watch.values()
    return Quietness(values["other_cores"], num_cores(), values["steal_share"], watch.programs())


def wait_for_quiet(task: Task[object]) -> None:
    """Wait for QUIET_READINGS consecutive quiet readings; meanwhile the task shows what it waits for.

    Raises Stopped where the task is stopped.
    """
    num_quiet = 0
    while num_quiet < QUIET_READINGS:
        with NoiseWatch() as watch:
            task.sleep(READING_S)
        task.check()
        now = quietness_of(watch)
        num_quiet = num_quiet + 1 if now.is_quiet else 0
        task.waits_for = "" if now.is_quiet else now.busy_with
