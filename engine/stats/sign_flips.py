"""Two-sided sign-flip permutation test, and the interval of all values that it does not reject."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.stats.intervals import Floats

Real = npt.NDArray[np.floating]

MOST_EXACT = 14
"""Number of rounds up to which all 2^n flips are tried; beyond it, NUM_FLIPS random ones, for which float32 is precise
enough."""
NUM_FLIPS = 20_000
_CHUNK = 1 << 21
_TIE = 1e-12


class SignFlips(NamedTuple):
    """p-value and interval of each column, shape (m,)."""

    p_values: Floats
    lows: Floats
    highs: Floats


def sign_flip_p(differences: Floats) -> float:
    """Return the p-value of "these differences, shape (n,), are symmetric about 0", by the sum's absolute value."""
    column = np.asarray(differences, np.float64)[:, None]
    return float(flip_signs(column, np.ones_like(column), null=0.0).p_values[0])


def flip_signs(numerators: Real, denominators: Real, *, null: float, alpha: float = 0.05, seed: int = 0) -> SignFlips:
    """Test in each column that sum(numerators) / sum(denominators) is `null`; both of shape (n rounds, m columns).

    The p-value is the share of sign flips of numerators − null · denominators whose sum is as far from 0 as the
    observed one, which is among them. The interval contains the ratios that this test would not reject at `alpha`: the
    ratios over all subsets of rounds, without the outermost (typical values, Hartigan 1969). Where there are too few
    rounds to reject anything, it runs from the smallest ratio to the largest; NaN below two rounds. With more than
    MOST_EXACT rounds, a column that has fewer of them is padded with zeros in both.
    """
    num_rounds, kind = len(numerators), np.float64 if len(numerators) <= MOST_EXACT else np.float32
    numerators, denominators = numerators.astype(kind), denominators.astype(kind)
    seen = numerators - null * denominators
    total, tie = seen.sum(0), _TIE * np.abs(seen).sum(0)
    num_beyond = np.ones(seen.shape[1])
    ratios = []
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = numerators.sum(0) / denominators.sum(0)
        for subsets in _subsets(num_rounds, seed):
            above, below = subsets @ numerators, subsets @ denominators
            num_beyond += (np.abs(2 * (above - null * below) - total) >= np.abs(total) - tie).sum(0)
            ratio = above / below
            ratios.append(np.where(np.isnan(ratio), whole, ratio).T)
    found = np.concatenate(ratios, axis=1)
    num_flips = found.shape[1] + 1
    if num_rounds < 2:
        nothing = np.full(seen.shape[1], np.nan)
        return SignFlips(num_beyond / num_flips, nothing, nothing)
    depth = max(1, int(alpha / 2 * num_flips))
    found = np.partition(found, (depth - 1, num_flips - 1 - depth), axis=1)
    return SignFlips(
        num_beyond / num_flips, found[:, depth - 1].astype(np.float64), found[:, -depth].astype(np.float64)
    )


def _subsets(num_rounds: int, seed: int) -> Iterator[Real]:
    """Yield subsets of the rounds as rows of 0 and 1: all but the empty one where there are few, else random ones."""
    if num_rounds <= MOST_EXACT:
        numbers = np.arange(1, 1 << num_rounds)
        yield (numbers[:, None] >> np.arange(num_rounds) & 1).astype(np.float64)
        return
    random = np.random.default_rng(seed)
    num_rows = max(1, _CHUNK // num_rounds)
    for start in range(0, NUM_FLIPS, num_rows):
        bits = random.integers(0, 256, (min(num_rows, NUM_FLIPS - start), -(-num_rounds // 8)), np.uint8)
        rows = np.unpackbits(bits, axis=1, count=num_rounds)
        yield rows.astype(np.float32)
