"""Distribution-free intervals of medians; the values of one round count as one."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.integer]


class Interval(NamedTuple):
    """A figure with the bounds of its interval, NaN for too few rounds; num: number of rounds that it is based on."""

    value: float
    low: float
    high: float
    num: int


NOTHING = Interval(math.nan, math.nan, math.nan, 0)


def median_interval(
    values: Sequence[float] | Floats, rounds: Sequence[int] | Whole | None = None, *, level: float = 0.95
) -> Interval:
    """Return the median over rounds of each round's median, with its interval, see `group_median_intervals`.

    values: shape (n,); non-finite ones are left out. rounds: the round of each value; None: each value is a round.
    """
    given = np.asarray(values, np.float64)
    if rounds is not None:
        names, group = np.unique(np.asarray(rounds), return_inverse=True)
        given = group_medians(given, group, len(names))
    (found,) = group_median_intervals(given, np.zeros(len(given), np.intp), 1, level=level)
    return found


def group_medians(values: Floats, groups: Whole, num_groups: int) -> Floats:
    """Return the median of each group's finite values, NaN for an empty group.

    Shape (num_groups,). groups: 0 … num_groups − 1, for each value.
    """
    ordered = _Ordered(values, groups, num_groups)
    return ordered.medians()


def group_median_intervals(values: Floats, groups: Whole, num_groups: int, *, level: float = 0.95) -> list[Interval]:
    """Return the median of each group's finite values with its interval at `level`; each value is one round.

    Bounds lie between order statistics, interpolated by the method of Hettmansperger and Sheather (1986): they contain
    the median at `level` whatever the distribution. Where there are too few rounds to reach `level` (five or fewer for
    95 %) they are the smallest and largest value, which contain it with probability 1 − 2^(1 − n); NaN below two
    rounds.
    """
    ordered = _Ordered(values, groups, num_groups)
    lows, highs = ordered.bounds(level)
    columns = (ordered.medians(), lows, highs, ordered.counts)
    return [Interval(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


class _Ordered:
    """Finite values of every group in ascending order; `at` reads one rank of all groups together."""

    def __init__(self, values: Floats, groups: Whole, num_groups: int) -> None:
        is_finite = np.isfinite(values)
        where = groups[is_finite]
        self.counts = np.bincount(where, minlength=num_groups)
        self._starts = np.cumsum(self.counts) - self.counts
        self._values = np.append(values[is_finite][np.argsort(where, kind="stable")], math.nan)
        size = 1
        while size < self.counts.max(initial=0):
            self._sort((self.counts > size) & (self.counts <= 2 * size), 2 * size)
            size *= 2

    def _sort(self, is_chosen: npt.NDArray[np.bool_], size: int) -> None:
        """Sort the chosen groups, of at most `size` values each, as rows of one table."""
        rank = np.arange(size)
        is_filled = rank < self.counts[is_chosen, None]
        places = (self._starts[is_chosen, None] + rank)[is_filled]
        rows = np.full(is_filled.shape, math.inf)
        rows[is_filled] = self._values[places]
        rows.sort(axis=1)
        self._values[places] = rows[is_filled]

    def at(self, ranks: Whole, is_there: npt.NDArray[np.bool_]) -> Floats:
        """Return the value of each group at its rank from 0, NaN where there is none."""
        return self._values[np.where(is_there, self._starts + ranks, -1)]

    def medians(self) -> Floats:
        is_there = self.counts > 0
        lower, upper = self.at((self.counts - 1) // 2, is_there), self.at(self.counts // 2, is_there)
        return 0.5 * lower + 0.5 * upper  # the sum of two large values may overflow

    def bounds(self, level: float) -> tuple[Floats, Floats]:
        num = self.counts
        sizes, which = np.unique(num, return_inverse=True)
        table = np.array([_depth(size, level) for size in sizes.tolist()]).reshape(-1, 2)
        depth, part = table[which, 0].astype(np.intp), table[which, 1]
        is_there = num > 1
        lows = (1 - part) * self.at(depth - 1, is_there) + part * self.at(depth, is_there)
        highs = (1 - part) * self.at(num - depth, is_there) + part * self.at(num - depth - 1, is_there)
        return lows, highs


@lru_cache(maxsize=4096)
def _depth(num: int, level: float) -> tuple[int, float]:
    """Return the rank of the order statistic bounding the median of `num` values, and the fraction towards the next.

    Ranks count from 1 at either end.
    """

    def confidence(depth: int) -> float:
        return 1 - 2 * float(bdtr(depth - 1, num, 0.5))

    depth = max(1, int(np.searchsorted(bdtr(np.arange(num), num, 0.5), (1 - level) / 2)))
    outer, inner = confidence(depth), confidence(depth + 1)
    if outer <= level or 2 * depth >= num:
        return depth, 0.0
    share = (outer - level) / (outer - inner)
    return depth, (num - depth) * share / (depth + (num - 2 * depth) * share)
