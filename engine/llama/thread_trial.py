"""One trial of another number of threads: a few decodes with it, held against their neighbours."""

from collections.abc import Collection

AS_FAST, FASTER = 1.02, 0.96
"""Fewer threads are taken where they are no slower than this, more where they are as fast as that."""
HOPELESS, _CLEAR = 1.3, 0.08
"""A trial ends early beyond the first, and where it is so far from its bar."""
_TRIAL_S, TRIAL_DECODES, LONGEST_TRIAL, _ENOUGH_S = 0.004, 3, 9, 0.25
"""Least seconds and decodes of one, most decodes, and seconds after which one decode is enough."""


class Trial:
    """Decodes with another number of threads. ratios: seconds over expected ones; baseline: that of the neighbours."""

    def __init__(self, threads: int, baseline: float, *, is_alarm: bool) -> None:
        self.threads, self.baseline, self.is_alarm = threads, baseline, is_alarm
        self.ratios: list[float] = []
        self.elapsed_s = self.excess_s = 0.0

    def add(self, elapsed_s: float, expected_s: float) -> None:
        """Another decode of it."""
        self.ratios.append(elapsed_s / expected_s)
        self.elapsed_s += elapsed_s
        self.excess_s += elapsed_s - self.baseline * expected_s

    @property
    def result(self) -> float:
        """Seconds over those of the neighbours."""
        return middle(self.ratios) / self.baseline

    def is_over(self, bar: float) -> bool:
        """True where the result is clearly on one side of `bar`, or long enough in coming."""
        num = len(self.ratios)
        if self.elapsed_s < _TRIAL_S:
            return False
        if self.result > HOPELESS or self.elapsed_s >= _ENOUGH_S:
            return True
        if num < TRIAL_DECODES:
            return False
        return abs(self.result - bar) > _CLEAR or num >= LONGEST_TRIAL


def middle(values: Collection[float]) -> float:
    """The median; of two the larger. statistics.median takes as long as all the rest of a decode's bookkeeping."""
    return sorted(values)[len(values) // 2]
