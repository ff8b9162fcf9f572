"""Power: rounds needed for a verdict, and the smallest detectable difference, by simulation of the test."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri, stdtrit

from engine.stats.intervals import Floats
from engine.stats.looks import look_after, rounds_at, share_of

_NUM_SIMULATED = 8_000
_MOST_SIMULATED = 48
"""Rounds beyond which the statistic is assumed to be normal."""
_LAST_LOOK = 40
_MARGIN = 1.04
"""Factor on the effect: sign flips of few rounds have slightly less power than the statistic's distribution implies."""


def noise_of(values: Sequence[float] | Floats) -> float:
    """Return the noise of one paired ratio: root mean square of the log-ratios of successive values.

    values: repeated measurements of one configuration in their order, such as the control. NaN for fewer than two
    usable values.
    """
    given = np.asarray(values, np.float64)
    given = given[np.isfinite(given) & (given > 0)]
    if len(given) < 2:
        return math.nan
    return float(np.sqrt(np.mean(np.diff(np.log(given)) ** 2)))


def smallest_ratio(
    noise_sd: float, num_rounds: int, *, power: float = 0.8, alpha: float = 0.05, num_comparisons: int = 1
) -> float:
    """Return the ratio, above 1, that is detected after so many rounds with probability `power`; 1.05 means 5 %.

    inf before the first look, and beyond the range of a float. noise_sd: standard deviation of the log-ratio of one
    round, see `noise_of`, assumed to be normal.
    """
    look = look_after(num_rounds)
    if look < 0:
        return math.inf
    effect = _smallest_effect(look, _rounded(num_comparisons), alpha, power)
    return math.exp(noise_sd * effect) if noise_sd * effect < 700 else math.inf


def rounds_needed(
    noise_sd: float, ratio: float, *, power: float = 0.8, alpha: float = 0.05, num_comparisons: int = 1
) -> int:
    """Return the number of rounds of the first look that detects `ratio` (above or below 1) with probability `power`.

    Raises ValueError for a ratio of 1, which is no difference, and for one that is not positive.
    """
    if ratio <= 0 or ratio == 1:
        raise ValueError(f"ratio = {ratio}: no number of rounds detects it")
    effect = abs(math.log(ratio)) / noise_sd if noise_sd > 0 else math.inf
    number = _rounded(num_comparisons)
    looks = range(_LAST_LOOK)
    return rounds_at(bisect_left(looks, True, key=lambda look: _smallest_effect(look, number, alpha, power) <= effect))


def _rounded(num_comparisons: int) -> int:
    """Return the next power of two, so that simulations are cached for few numbers of comparisons."""
    return 1 << max(0, num_comparisons - 1).bit_length()


@lru_cache(maxsize=4096)
def _smallest_effect(look: int, num_comparisons: int, alpha: float, power: float) -> float:
    """Return the mean over the standard deviation of one round's log-ratios that the look detects with this power."""
    num_rounds = rounds_at(look)
    critical = _critical(num_rounds, num_comparisons, alpha * share_of(look))
    if num_rounds > _MOST_SIMULATED:
        return _MARGIN * (critical + float(ndtri(power))) / math.sqrt(num_rounds)
    noise = np.random.default_rng(1).standard_normal((_NUM_SIMULATED // 2, num_rounds))
    low, high = 0.0, 64.0
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        shifted = noise + middle
        statistic = shifted.sum(1) / np.sqrt((shifted**2).sum(1))
        if np.quantile(statistic, 1 - power) < critical:
            low = middle
        else:
            high = middle
    return _MARGIN * high


@lru_cache(maxsize=4096)
def _critical(num_rounds: int, num_comparisons: int, level: float) -> float:
    """Return the critical value of the largest statistic of so many columns without a difference.

    It is exceeded with probability `level`, approximately. For normal columns of correlation 0.5 it is an integral over
    their shared part (Dunnett 1955); a column's own level is then read from the t distribution, whose t is sqrt((n - 1)
    / (n - T^2)) times the statistic T.
    """
    shared = np.linspace(-8, 8, 801)
    weights = np.exp(-(shared**2) / 2)
    weights /= weights.sum()

    def excess(critical: float) -> float:
        reach = math.sqrt(2) * critical
        inside = ndtr(reach - shared) - ndtr(-reach - shared)
        return float(1 - weights @ inside**num_comparisons) - level

    normal = float(brentq(excess, 0.0, 12.0))
    t = -float(stdtrit(num_rounds - 1, ndtr(-normal)))
    return math.sqrt(num_rounds) * t / math.sqrt(num_rounds - 1 + t * t)
