"""Looks: the numbers of rounds at which verdicts are computed, and the share of alpha that each may spend.

A test that is repeated as rounds are added errs more often than alpha. It is therefore run at fixed numbers of rounds
only, 8 and then about 1.41 times as many each time, and alpha is divided among them (Bonferroni): a false difference is
reported with probability alpha at most, however often one looks and whenever one stops. Between two looks the verdict
of the earlier one remains.
"""

import math
from functools import cache

FIRST_LOOK = 8
"""Fewest rounds of a verdict. The smallest p-value of 8 rounds is 2/256, half of what the first look may spend, so that
it can be reached even where alpha is split once more."""

_FIRST_SHARE = 0.3125
_SUM_OF_OTHERS = math.pi**2 / 6 - 1
"""The sum over k from 1 of 1 / (k + 1)^2 (Euler 1735)."""


@cache
def rounds_at(look: int) -> int:
    """Return the number of rounds of a look, numbered from 0."""
    return math.ceil(FIRST_LOOK * 2 ** (look / 2))


def look_after(num_rounds: int) -> int:
    """Return the number of the last look that so many rounds allow; -1 before the first."""
    look = -1
    while rounds_at(look + 1) <= num_rounds:
        look += 1
    return look


def next_look(num_rounds: int) -> int:
    """Return the number of rounds of the first look beyond `num_rounds`."""
    return rounds_at(look_after(num_rounds) + 1)


def share_of(look: int) -> float:
    """Return the share of alpha that a look may spend; the shares of all looks add up to 1."""
    if look == 0:
        return _FIRST_SHARE
    return (1 - _FIRST_SHARE) / ((look + 1) ** 2 * _SUM_OF_OTHERS)
