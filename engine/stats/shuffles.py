"""Two-sided permutation test on the difference of two means, for samples that were not measured in pairs."""

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.stats.intervals import Floats

MOST_EXACT = 20_000
"""Number of ways to split the values up to which all are tried; beyond it, NUM_SHUFFLES random ones, or fewer where
there are very many values."""
NUM_SHUFFLES = 4_999
_FEWEST_SHUFFLES = 999
_MOST_DRAWN = 1 << 23
_CHUNK = 1 << 21
_AT_ONCE = 64
_TIE = 1e-12


class Shuffles(NamedTuple):
    """Difference of means, p-value and interval of the difference in each column, shape (m,)."""

    differences: Floats
    p_values: Floats
    lows: Floats
    highs: Floats


def shuffle(ours: Floats, theirs: Floats, *, alpha: float = 0.05, seed: int = 0) -> Shuffles:
    """Test in each column that ours and theirs have the same mean; shapes (n, m) and (k, m), n and k at least 2.

    The p-value is the share of ways to split all values into n and k whose difference of means, divided by its standard
    error, is as far from 0 as the observed one, which is among them. Because of the division by the standard error the
    test is also valid, approximately, where one side varies more than the other (Janssen 1997; Chung and Romano 2013).
    The interval is the difference plus or minus the number of its standard errors within which 1 − alpha of all ways
    stay once both sides have the same mean; so it may disagree slightly with the test.
    """
    starts = range(0, ours.shape[1], _AT_ONCE)
    parts = [_shuffle(ours[:, at : at + _AT_ONCE], theirs[:, at : at + _AT_ONCE], alpha, seed) for at in starts]
    return Shuffles(*map(np.concatenate, zip(*parts, strict=True)))


def _shuffle(ours: Floats, theirs: Floats, alpha: float, seed: int) -> Shuffles:
    num_ours, means = len(ours), (ours.mean(0), theirs.mean(0))
    values = np.concatenate([ours, theirs])
    seen = _Columns(values - values.mean(0), num_ours)
    level = _Columns(np.concatenate([ours - means[0], theirs - means[1]]), num_ours)
    own = seen.squares((np.arange(len(values)) < num_ours).astype(np.float64)[None])[0]
    num_beyond, found = np.ones(len(own)), []
    for ways in _ways(num_ours, len(theirs), seed):
        num_beyond += (seen.squares(ways) >= own * (1 - _TIE) - _TIE).sum(0)
        found.append(level.squares(ways))
    squares = np.concatenate(found)
    num_ways = 1 + len(squares)
    rank = min(num_ways - 1, math.ceil((1 - alpha) * num_ways)) - 1
    reach = np.sqrt(np.partition(squares, rank, axis=0)[rank]) * level.standard_error()
    difference = means[0] - means[1]
    return Shuffles(difference, num_beyond / num_ways, difference - reach, difference + reach)


class _Columns:
    """Columns of values that add up to 0, of which the first `num` are ours."""

    def __init__(self, values: Floats, num: int) -> None:
        self._values, self._num, self._rest = values, num, len(values) - num
        self._both = np.concatenate([values, values**2], axis=1)
        self._square: Floats = (values**2).sum(0)

    def squares(self, ways: Floats) -> Floats:
        """Return the studentised difference squared, shape (ways, columns); 0 where all values are equal."""
        total, square = np.split(ways @ self._both, 2, axis=1)
        total **= 2
        ours, theirs = (1 / (num * (num - 1)) for num in (self._num, self._rest))
        variance = self._square * theirs - total * (ours / self._num + theirs / self._rest)
        if ours != theirs:
            variance += square * (ours - theirs)
        np.maximum(variance, _TIE * self._square, out=variance)
        total *= (1 / self._num + 1 / self._rest) ** 2
        found: Floats = np.divide(total, variance, out=np.zeros_like(total), where=variance > 0)
        return found

    def standard_error(self) -> Floats:
        """Return the standard error of the observed difference, shape (columns,)."""
        sides = self._values[: self._num], self._values[self._num :]
        found: Floats = np.sqrt(sum(side.var(0, ddof=1) / len(side) for side in sides))
        return found


def _ways(num_ours: int, num_theirs: int, seed: int) -> Iterator[Floats]:
    """Yield ways to split the values as rows of 1 (ours) and 0, without the observed one."""
    if math.comb(num_ours + num_theirs, num_ours) <= MOST_EXACT:
        yield _all_ways(num_ours, num_theirs)
        return
    num_values = num_ours + num_theirs
    num_ways = max(_FEWEST_SHUFFLES, min(NUM_SHUFFLES, _MOST_DRAWN // num_values))
    num_rows = max(1, _CHUNK // num_values)
    for start in range(0, num_ways, num_rows):
        yield _random_ways(num_ours, num_theirs, min(num_rows, num_ways - start), seed + start).astype(np.float64)


@lru_cache(maxsize=16)
def _random_ways(num_ours: int, num_theirs: int, num_ways: int, seed: int) -> npt.NDArray[np.bool_]:
    """Draw random ways; cached for the next metric of the same configurations, at most 2 MB each."""
    drawn = np.random.default_rng(seed).random((num_ways, num_ours + num_theirs))
    chosen = np.argpartition(drawn, num_ours - 1, axis=1)[:, :num_ours]
    rows = np.zeros(drawn.shape, np.bool_)
    np.put_along_axis(rows, chosen, True, axis=1)
    return rows


@lru_cache(maxsize=8)
def _all_ways(num_ours: int, num_theirs: int) -> Floats:
    """Return all ways but the observed one; for two sides of equal size only one of each pair of mirror images."""
    num_values = num_ours + num_theirs
    num_all = math.comb(num_values, num_ours)
    if num_ours == num_theirs:
        num_all //= 2  # the first half of all combinations contains the first value
    chosen = np.array(list(islice(combinations(range(num_values), num_ours), 1, num_all)), np.intp)
    rows = np.zeros((num_all - 1, num_values))
    np.put_along_axis(rows, chosen.reshape(-1, num_ours), 1.0, axis=1)
    rows.setflags(write=False)
    return rows
