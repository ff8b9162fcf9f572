"""Evidence on pairs of configurations: the ratio over all rounds, and the p-value of the looks so far."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from engine.stats.intervals import NOTHING, Floats, Interval
from engine.stats.looks import FIRST_LOOK, look_after, rounds_at, share_of
from engine.stats.max_t import max_t
from engine.stats.shuffles import shuffle
from engine.stats.sign_flips import MOST_EXACT, flip_signs, sign_flip_p

ByRound = Mapping[int, float]
Pair = tuple[ByRound, ByRound]

FEWEST_IN_FAMILY = 6
"""Rounds below which a configuration is neither tested nor counted in the family."""


class Evidence(NamedTuple):
    """Evidence of one comparison: ours / theirs over all rounds, and its p-value.

    centre, sd: mean and standard deviation of the difference of a single round, in logarithms or approximately so; sd
    is NaN for fewer than two rounds. p_value: for `paired`, the smallest of the looks so far, replaced by that of a
    later look which decides at alpha after the difference was reversed; otherwise that of the last look. Each is
    divided by the look's share of alpha and corrected for the number of comparisons; NaN before the first look. sign:
    of the difference at that look, else 0.
    """

    ratio: Interval
    centre: float
    sd: float
    p_value: float = math.nan
    sign: float = 0.0

    @property
    def is_one_way(self) -> bool:
        """True where all rounds together differ in the same direction as at that look."""
        return self.sign * (self.ratio.value - 1) > 0


NO_EVIDENCE = Evidence(NOTHING, math.nan, math.nan)


def paired(pairs: Sequence[Pair], alpha: float, num_families: int = 1) -> list[Evidence]:
    """Return evidence on pairs measured in the same rounds, as one family: log-ratios by `max_t`, at every look so far.

    A comparison that one look has decided at `alpha` is no member of the family at later ones (Maurer and Bretz 2013),
    unless later rounds have reversed it. `alpha` is also that of the intervals; the tests of `num_families` families,
    this one included, share it.
    """
    table = _table(pairs)
    found = _ratios([column[~np.isnan(column)] for column in table.T], alpha)
    for look in range(look_after(len(table)) + 1):
        early = table[: rounds_at(look)]
        is_open = np.array([not (one.p_value <= alpha and one.is_one_way) for one in found], np.bool_)
        numbers = np.flatnonzero(((~np.isnan(early)).sum(0) >= FEWEST_IN_FAMILY) & is_open)
        p_values = max_t(early[:, numbers]) * num_families / share_of(look)
        signs = np.sign(np.nansum(early[:, numbers], axis=0))
        for number, p_value, sign in zip(numbers.tolist(), p_values.tolist(), signs.tolist(), strict=True):
            before = found[number]
            is_smaller = math.isnan(before.p_value) or p_value < before.p_value
            if is_smaller or (p_value <= alpha and not before.is_one_way):
                found[number] = before._replace(p_value=min(1.0, p_value), sign=sign)
    return found


def apart(pairs: Sequence[Pair], alpha: float, num_families: int = 1) -> list[Evidence]:
    """Return evidence on pairs measured separately: permutation tests at the last look of each, with Holm's correction.

    `alpha` is that of the intervals; the tests of `num_families` families, this one included, share it.
    """
    logs = [(_logs(ours), _logs(theirs)) for ours, theirs in pairs]
    found = _ratios_apart(logs, alpha)
    looks = [(look_after(len(ours)), look_after(len(theirs))) for ours, theirs in logs]
    tested = [number for number, pair in enumerate(looks) if min(pair) >= 0]
    early = [tuple(side[: rounds_at(look)] for side, look in zip(logs[n], looks[n], strict=True)) for n in tested]
    p_values, signs = _shuffled(early)
    for number, p_value, sign in zip(tested, holm(p_values), signs, strict=True):
        # Look numbers only grow on either side, so successive looks of a pair have distinct sums.
        corrected = min(1.0, p_value * num_families / share_of(sum(looks[number])))
        found[number] = found[number]._replace(p_value=corrected, sign=sign)
    return found


def spread(ours: ByRound, theirs: ByRound, alpha: float) -> Evidence:
    """Return evidence on the absolute deviations of the logarithms from their own median, by sign flips.

    The ratio is that of the mean deviations.
    """
    a, b = _deviations(ours, theirs)
    if not b.any():
        return NO_EVIDENCE._replace(ratio=NOTHING._replace(num=len(a)))
    flips = flip_signs(a[:, None], b[:, None], null=1.0, alpha=alpha)
    ratio = Interval(float(a.sum() / b.sum()), float(flips.lows[0]), float(flips.highs[0]), len(a))
    evidence = Evidence(ratio, *_centre((a - b) / b.mean()))
    look = look_after(len(a))
    if look < 0:
        return evidence
    early = (a - b)[: rounds_at(look)]
    p_value = min(1.0, sign_flip_p(early) / share_of(look))
    return evidence._replace(p_value=p_value, sign=float(np.sign(early.sum())))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979): the i-th smallest of m times m − i + 1, never falling.

    NaN, a comparison that was not tested, stays NaN and is not counted.
    """
    given = np.asarray(p_values, np.float64)
    corrected = np.full(len(given), math.nan)
    order = np.argsort(given)[: np.count_nonzero(~np.isnan(given))]
    factors = np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(given[order] * factors))
    found: list[float] = corrected.tolist()
    return found


def _common(pair: Pair) -> tuple[list[int], Floats, Floats]:
    """Return the rounds in which both figures are positive and finite, in order, and the figures."""
    ours, theirs = pair
    rounds = np.array(sorted(ours.keys() & theirs.keys()), np.int64)
    a, b = (np.array([given[number] for number in rounds.tolist()], np.float64) for given in (ours, theirs))
    is_usable = np.isfinite(a) & np.isfinite(b) & (a > 0) & (b > 0)
    return rounds[is_usable].tolist(), a[is_usable], b[is_usable]


def _table(pairs: Sequence[Pair]) -> Floats:
    """Return log-ratios, shape (rounds that any pair has, pairs), NaN where a pair lacks the round."""
    columns = [_common(pair) for pair in pairs]
    place = {number: row for row, number in enumerate(sorted({one for rounds, _a, _b in columns for one in rounds}))}
    table = np.full((len(place), len(pairs)), math.nan)
    for column, (rounds, ours, theirs) in enumerate(columns):
        table[[place[number] for number in rounds], column] = np.log(ours / theirs)
    return table


def _deviations(ours: ByRound, theirs: ByRound) -> tuple[Floats, Floats]:
    """Return the absolute deviations of both, for the rounds in which either differs from its median."""
    _rounds, *figures = _common((ours, theirs))
    logs = [np.log(given) for given in figures]
    a, b = (np.abs(given - np.median(given)) if len(given) else given for given in logs)
    varies = a + b > 0
    return a[varies], b[varies]


def _logs(figures: ByRound) -> Floats:
    given = np.array([figures[number] for number in sorted(figures)], np.float64)
    return np.log(given[np.isfinite(given) & (given > 0)])


def _centre(differences: Floats) -> tuple[float, float]:
    """Return mean and standard deviation; the latter NaN for fewer than two."""
    return float(differences.mean()), float(differences.std(ddof=1)) if len(differences) > 1 else math.nan


def _ratios(logs: Sequence[Floats], alpha: float) -> list[Evidence]:
    """Return evidence without p-value for each pair over all its rounds.

    Pairs with the same number of rounds are computed together, as are all pairs with enough rounds for random flips.
    """
    alike = defaultdict(list)
    for number, log in enumerate(logs):
        alike[min(len(log), MOST_EXACT + 1)].append(number)
    found = [NO_EVIDENCE] * len(logs)
    alike.pop(0, None)
    for numbers in alike.values():
        columns = np.zeros((max(len(logs[number]) for number in numbers), len(numbers)))
        is_there = np.zeros_like(columns)
        for column, number in enumerate(numbers):
            columns[: len(logs[number]), column] = logs[number]
            is_there[: len(logs[number]), column] = 1
        flips = flip_signs(columns, is_there, null=0.0, alpha=alpha)
        bounds = np.exp(np.stack([columns.sum(0) / is_there.sum(0), flips.lows, flips.highs], axis=1)).tolist()
        for number, (value, low, high) in zip(numbers, bounds, strict=True):
            log = logs[number]
            found[number] = Evidence(Interval(value, low, high, len(log)), *_centre(log))
    return found


def _ratios_apart(logs: Sequence[tuple[Floats, Floats]], alpha: float) -> list[Evidence]:
    """Return evidence without p-value for each pair over all its rounds, pairs of the same two sizes computed together.

    Pairs with fewer than eight rounds on either side get only their range.
    """
    found = [_range(ours, theirs) for ours, theirs in logs]
    for numbers in _alike(logs):
        ours, theirs = (np.stack([logs[number][side] for number in numbers], axis=1) for side in (0, 1))
        shuffles = shuffle(ours, theirs, alpha=alpha)
        sd = np.sqrt(ours.var(0, ddof=1) + theirs.var(0, ddof=1)).tolist()
        bounds = np.exp(np.stack([shuffles.differences, shuffles.lows, shuffles.highs], axis=1)).tolist()
        columns = zip(numbers, bounds, shuffles.differences.tolist(), sd, strict=True)
        for number, (value, low, high), centre, scatter in columns:
            found[number] = Evidence(Interval(value, low, high, min(len(ours), len(theirs))), centre, scatter)
    return found


def _shuffled(logs: Sequence[tuple[Floats, ...]]) -> tuple[list[float], list[float]]:
    """Return p-value and sign of each pair of samples, each of at least eight values."""
    p_values, signs = [math.nan] * len(logs), [0.0] * len(logs)
    for numbers in _alike(logs):
        shuffles = shuffle(*(np.stack([logs[number][side] for number in numbers], axis=1) for side in (0, 1)))
        found = zip(numbers, shuffles.p_values.tolist(), np.sign(shuffles.differences).tolist(), strict=True)
        for number, p_value, sign in found:
            p_values[number], signs[number] = p_value, sign
    return p_values, signs


def _alike(logs: Sequence[tuple[Floats, ...]]) -> list[list[int]]:
    """Group the numbers of the pairs that have enough rounds by the sizes of their two sides."""
    alike = defaultdict(list)
    for number, (ours, theirs) in enumerate(logs):
        if min(len(ours), len(theirs)) >= FIRST_LOOK:
            alike[len(ours), len(theirs)].append(number)
    return list(alike.values())


def _range(ours: Floats, theirs: Floats) -> Evidence:
    """Return the ratio, with the smallest and the largest ratio of any two values as its interval."""
    num = min(len(ours), len(theirs))
    if not num:
        return NO_EVIDENCE
    centre = float(ours.mean() - theirs.mean())
    if num == 1:
        return Evidence(Interval(math.exp(centre), math.nan, math.nan, 1), centre, math.nan)
    low, high = float(ours.min() - theirs.max()), float(ours.max() - theirs.min())
    ratio = Interval(math.exp(centre), math.exp(low), math.exp(high), num)
    return Evidence(ratio, centre, math.sqrt(ours.var(ddof=1) + theirs.var(ddof=1)))
