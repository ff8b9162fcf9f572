"""How many rounds a verdict needs, and the smallest difference that so many rounds find."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.special import nctdtrinc, ndtri, stdtrit

from engine.stats.intervals import Floats
from engine.stats.sign_flips import MOST_EXACT

FEWEST_ROUNDS = 6
"""Below this no verdict is given: with five rounds, no sign-flip test can reach 5 %."""

_MANY = 1_000_000
"""Rounds from which on the t test is the normal one to less than a round in a million."""

_FEW_FLIPS = 7
_NUM_SIMULATED = 20_000


def fewest_rounds(num_comparisons: int = 1, *, alpha: float = 0.05) -> int:
    """Rounds below which not even the largest difference can be told, when so many comparisons are made at once.

    n rounds have 2^n sign flips, so no p-value is below 2^(1 − n), and Holm's correction asks for alpha / m.
    """
    return max(FEWEST_ROUNDS, math.ceil(1 + math.log2(num_comparisons / alpha)))


def noise_of(values: Sequence[float] | Floats) -> float:
    """Noise of one paired ratio: root mean square of the log-ratios of neighbours, in the order they were measured.

    values: one cell again and again, such as the anchor. NaN for fewer than two usable values.
    """
    given = np.asarray(values, np.float64)
    given = given[np.isfinite(given) & (given > 0)]
    if len(given) < 2:
        return math.nan
    return float(np.sqrt(np.mean(np.diff(np.log(given)) ** 2)))


def smallest_ratio(
    noise_sd: float, num_rounds: int, *, power: float = 0.8, alpha: float = 0.05, num_comparisons: int = 1
) -> float:
    """Ratio, above 1, that the sign-flip test finds with probability `power`; 1.05 means 5 %. inf: none, ever.

    noise_sd: standard deviation of the log-ratio of one round, see `noise_of`, taken as normal.
    """
    if num_rounds < fewest_rounds(num_comparisons, alpha=alpha):
        return math.inf
    effect = _smallest_effect(num_rounds, alpha / num_comparisons, power)
    return math.exp(noise_sd * effect) if noise_sd * effect < 700 else math.inf


def rounds_needed(
    noise_sd: float, ratio: float, *, power: float = 0.8, alpha: float = 0.05, num_comparisons: int = 1
) -> int:
    """Rounds after which the sign-flip test finds `ratio` (above or below 1) with probability `power`.

    Raises ValueError for a ratio of 1, which is no difference.
    """
    if ratio <= 0 or ratio == 1:
        raise ValueError(f"ratio = {ratio}: no number of rounds finds it")
    fewest = fewest_rounds(num_comparisons, alpha=alpha)
    level = alpha / num_comparisons
    effect = abs(math.log(ratio)) / noise_sd if noise_sd > 0 else math.inf
    if effect == math.inf:
        return fewest
    about = math.ceil((float(ndtri(power) - ndtri(level / 2)) / effect) ** 2)
    if about >= _MANY:
        return about
    choice = range(fewest, fewest + 2 * about + 32)
    return choice[bisect_left(choice, True, key=lambda num: _smallest_effect(num, level, power) <= effect)]


@lru_cache(maxsize=4096)
def _smallest_effect(num_rounds: int, alpha: float, power: float) -> float:
    """Mean over standard deviation of the paired log-ratios that the test finds with this power.

    As for the t test at the level that sign flips can reach, which is good to a percent of power, except where that
    level leaves only a few flips: there as simulated.
    """
    num_extreme = int(alpha / 2 * 2**num_rounds) if num_rounds <= MOST_EXACT else math.inf
    if num_extreme <= _FEW_FLIPS:
        return _simulated_effect(num_rounds, int(num_extreme), power)
    level = alpha if num_extreme == math.inf else 2 * num_extreme / 2**num_rounds
    critical = -float(stdtrit(num_rounds - 1, level / 2))
    return float(nctdtrinc(num_rounds - 1, 1 - power, critical)) / math.sqrt(num_rounds)


def _simulated_effect(num_rounds: int, num_extreme: int, power: float) -> float:
    """The test refuses where the num_extreme-th smallest mean over subsets of rounds is above 0.

    The smallest seven means are over subsets of the seven smallest values, so no others are looked at.
    """
    noise = np.random.default_rng(0).standard_normal((_NUM_SIMULATED, num_rounds))
    smallest = np.sort(noise, axis=1)[:, :_FEW_FLIPS]
    numbers = np.arange(1, 1 << smallest.shape[1])
    subsets = (numbers[:, None] >> np.arange(smallest.shape[1]) & 1).astype(np.float64)
    means = smallest @ subsets.T / subsets.sum(1)
    needed = -np.partition(means, num_extreme - 1, axis=1)[:, num_extreme - 1]
    return float(np.quantile(needed, power))
