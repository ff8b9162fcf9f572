"""Trial of another thread count: a few decodes with it, compared with the decodes before."""

from collections.abc import Collection

AS_FAST, FASTER = 1.02, 0.96
"""Bars for a trial's result (time relative to the neighbours): fewer threads are adopted up to the first, more threads
up to the second."""
HOPELESS, _CLEAR = 1.3, 0.08
"""A trial ends early if its result is above the first, or differs from its bar by more than the second."""
_TRIAL_S, TRIAL_DECODES, LONGEST_TRIAL, _ENOUGH_S = 0.004, 3, 9, 0.25
"""Limits of a trial: minimum seconds and decodes, maximum decodes, and seconds after which one decode is enough."""


class Trial:
    """Decodes with another thread count. ratios: measured over expected seconds; baseline: this ratio of the decodes
    before the trial (the neighbours)."""

    def __init__(self, threads: int, baseline: float, *, is_alarm: bool) -> None:
        self.threads, self.baseline, self.is_alarm = threads, baseline, is_alarm
        self.ratios: list[float] = []
        self.elapsed_s = self.excess_s = 0.0

    def add(self, elapsed_s: float, expected_s: float) -> None:
        """Add one decode of the trial."""
        self.ratios.append(elapsed_s / expected_s)
        self.elapsed_s += elapsed_s
        self.excess_s += elapsed_s - self.baseline * expected_s

    @property
    def result(self) -> float:
        """Time relative to the neighbours: median ratio over the baseline."""
        return middle(self.ratios) / self.baseline

    def is_over(self, bar: float) -> bool:
        """Return True if the result is clearly on one side of `bar`, or the trial has reached a limit."""
        num = len(self.ratios)
        if self.elapsed_s < _TRIAL_S:
            return False
        if self.result > HOPELESS or self.elapsed_s >= _ENOUGH_S:
            return True
        if num < TRIAL_DECODES:
            return False
        return abs(self.result - bar) > _CLEAR or num >= LONGEST_TRIAL


def middle(values: Collection[float]) -> float:
    """Return the upper median (of two values the larger). statistics.median takes as long as all the rest of a decode's
    bookkeeping."""
    return sorted(values)[len(values) // 2]
