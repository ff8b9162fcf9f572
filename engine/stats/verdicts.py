"""A verdict in words on two configurations, measured in the same rounds or apart."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import ndtri

from engine.stats.intervals import NOTHING, Floats, Interval
from engine.stats.power import FEWEST_ROUNDS, fewest_rounds, rounds_needed
from engine.stats.shuffles import shuffle
from engine.stats.sign_flips import MOST_EXACT, flip_signs

Word = Literal["faster", "slower", "more", "less", "steadier", "less steady", "same", "not enough data"]
ByRound = Mapping[int, float]
SAME_WITHIN = 0.02
SPREAD_SAME_WITHIN = 0.25
_POWER = 0.8


class Verdict(NamedTuple):
    """What can be said of ours against theirs.

    ratio: ours / theirs, geometric mean over the common rounds, with the interval that the test alone does not refuse;
    of two measured apart the ratio of their geometric means. p_value: of the test, after Holm's correction where
    several were compared; NaN below six rounds. num_rounds: those in common; of two measured apart, those of the one
    with fewer. more_rounds: how many more, of both, would probably tell, from the noise seen; 0 when there is a
    verdict.
    """

    word: Word
    ratio: Interval
    p_value: float
    num_rounds: int
    more_rounds: int


def compare(
    ours: ByRound,
    theirs: ByRound,
    *,
    is_more_better: bool | None = True,
    words: tuple[Word, Word] | None = None,
    alpha: float = 0.05,
    same_within: float = SAME_WITHIN,
) -> Verdict:
    """Verdict on one figure, given by round; see `compare_many`."""
    (verdict,) = compare_many(
        [(ours, theirs)], is_more_better=is_more_better, words=words, alpha=alpha, same_within=same_within
    )
    return verdict


def compare_independent(
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    is_more_better: bool | None = True,
    words: tuple[Word, Word] | None = None,
    alpha: float = 0.05,
    same_within: float = SAME_WITHIN,
) -> Verdict:
    """Verdict on one figure whose rounds were not measured together; see `compare_many`."""
    pair = dict(enumerate(ours)), dict(enumerate(theirs))
    (verdict,) = compare_many(
        [pair], [False], is_more_better=is_more_better, words=words, alpha=alpha, same_within=same_within
    )
    return verdict


def compare_many(
    pairs: Sequence[tuple[ByRound, ByRound]],
    is_paired: Sequence[bool] | None = None,
    *,
    is_more_better: bool | None = True,
    words: tuple[Word, Word] | None = None,
    alpha: float = 0.05,
    same_within: float = SAME_WITHIN,
) -> list[Verdict]:
    """Verdicts on several pairs (ours, theirs), figures by round, with Holm's correction over all of them.

    is_paired: for each pair whether its rounds were measured together (None: all of them). If so, a two-sided sign-flip
    test on the log-ratios of the rounds that both have; else a permutation test on the difference of the mean
    logarithms, which knows nothing of what else differed between the two occasions. Figures that are not positive are
    left out. "same" comes first, where the whole interval lies within `same_within` of 1: such a difference may be real
    and still does not matter. words: said when ours is better and when it is worse; where is_more_better is None, when
    it is more and when it is less.
    """
    better, worse = words or (("more", "less") if is_more_better is None else ("faster", "slower"))
    larger_smaller = (worse, better) if is_more_better is False else (better, worse)
    kinds = [True] * len(pairs) if is_paired is None else is_paired
    found = [_UNTOLD] * len(pairs)
    for kind, evidence in ((True, _paired), (False, _apart)):
        numbers = [number for number, paired in enumerate(kinds) if paired is kind]
        for number, one in zip(numbers, evidence([pairs[number] for number in numbers], alpha), strict=True):
            found[number] = one
    return _judge(found, larger_smaller, alpha, same_within)


def compare_spread(
    ours: ByRound, theirs: ByRound, *, alpha: float = 0.05, same_within: float = SPREAD_SAME_WITHIN
) -> Verdict:
    """Whether ours varies less from round to round ("steadier") or more ("less steady") than theirs.

    A sign-flip test on the paired differences of how far the logarithms lie from their own median; ratio: mean
    deviation of ours over that of theirs.
    """
    deviations = [_deviations(given) for given in _common((ours, theirs))]
    varies = np.add(*deviations) > 0
    a, b = (given[varies] for given in deviations)
    if not b.any():
        return Verdict(
            "not enough data", Interval(math.nan, math.nan, math.nan, len(a)), math.nan, len(a), FEWEST_ROUNDS
        )
    flips = flip_signs(a[:, None], b[:, None], null=1.0, alpha=alpha)
    ratio = Interval(float(a.sum() / b.sum()), float(flips.lows[0]), float(flips.highs[0]), len(a))
    evidence = _Evidence(ratio, float(flips.p_values[0]), *_centre((a - b) / b.mean()))
    return _judge([evidence], ("less steady", "steadier"), alpha, same_within)[0]


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number (Holm 1979): the i-th smallest of m times m − i + 1, never falling.

    NaN, a comparison that was not tested, stays NaN and is not counted.
    """
    given = np.asarray(p_values, np.float64)
    corrected = np.full(len(given), math.nan)
    order = np.argsort(given)[: np.count_nonzero(~np.isnan(given))]
    factors = np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(given[order] * factors))
    found: list[float] = corrected.tolist()
    return found


def _common(pair: tuple[ByRound, ByRound]) -> tuple[Floats, Floats]:
    """Figures of the rounds in which both are positive, in the order of the rounds."""
    ours, theirs = pair
    rounds = sorted(ours.keys() & theirs.keys())
    a, b = (np.array([given[number] for number in rounds], np.float64) for given in (ours, theirs))
    is_usable = np.isfinite(a) & np.isfinite(b) & (a > 0) & (b > 0)
    return a[is_usable], b[is_usable]


def _deviations(figures: Floats) -> Floats:
    logs = np.log(figures)
    return np.abs(logs - np.median(logs)) if len(logs) else logs


def _logs(figures: ByRound) -> Floats:
    given = np.array(list(figures.values()), np.float64)
    return np.log(given[np.isfinite(given) & (given > 0)])


class _Evidence(NamedTuple):
    """One comparison: its ratio, the p-value of its own test, and mean and standard deviation of the difference that
    one round shows, in logarithms or near them."""

    ratio: Interval
    p_value: float
    centre: float
    sd: float


_UNTOLD = _Evidence(NOTHING, math.nan, math.nan, math.nan)


def _centre(differences: Floats) -> tuple[float, float]:
    """Mean and standard deviation; the latter NaN for fewer than two."""
    return float(differences.mean()), float(differences.std(ddof=1)) if len(differences) > 1 else math.nan


def _paired(pairs: list[tuple[ByRound, ByRound]], alpha: float) -> list[_Evidence]:
    """Test the log-ratios of each pair: those of one length together, and together all that get random flips."""
    logs = [np.log(ours / theirs) for ours, theirs in map(_common, pairs)]
    alike = defaultdict(list)
    for number, log in enumerate(logs):
        alike[min(len(log), MOST_EXACT + 1)].append(number)
    found = [_UNTOLD] * len(logs)
    alike.pop(0, None)
    for numbers in alike.values():
        columns = np.zeros((max(len(logs[number]) for number in numbers), len(numbers)))
        is_there = np.zeros_like(columns)
        for column, number in enumerate(numbers):
            columns[: len(logs[number]), column] = logs[number]
            is_there[: len(logs[number]), column] = 1
        flips = flip_signs(columns, is_there, null=0.0, alpha=alpha)
        bounds = np.exp(np.stack([columns.sum(0) / is_there.sum(0), flips.lows, flips.highs], axis=1)).tolist()
        for number, (value, low, high), p in zip(numbers, bounds, flips.p_values.tolist(), strict=True):
            log = logs[number]
            found[number] = _Evidence(Interval(value, low, high, len(log)), p, *_centre(log))
    return found


def _apart(pairs: list[tuple[ByRound, ByRound]], alpha: float) -> list[_Evidence]:
    """Test each pair as two samples, those of the same sizes together; of fewer than six rounds only their range."""
    logs = [(_logs(ours), _logs(theirs)) for ours, theirs in pairs]
    found = [_evidence_of_few(ours, theirs) for ours, theirs in logs]
    alike = defaultdict(list)
    for number, (ours, theirs) in enumerate(logs):
        if min(len(ours), len(theirs)) >= FEWEST_ROUNDS:
            alike[len(ours), len(theirs)].append(number)
    for numbers in alike.values():
        ours, theirs = (np.stack([logs[number][side] for number in numbers], axis=1) for side in (0, 1))
        shuffles = shuffle(ours, theirs, alpha=alpha)
        sd = np.sqrt(ours.var(0, ddof=1) + theirs.var(0, ddof=1)).tolist()
        bounds = np.exp(np.stack([shuffles.differences, shuffles.lows, shuffles.highs], axis=1)).tolist()
        columns = zip(numbers, bounds, shuffles.p_values.tolist(), shuffles.differences.tolist(), sd, strict=True)
        for number, (value, low, high), p, difference, spread in columns:
            ratio = Interval(value, low, high, min(len(ours), len(theirs)))
            found[number] = _Evidence(ratio, p, difference, spread)
    return found


def _evidence_of_few(ours: Floats, theirs: Floats) -> _Evidence:
    """The ratio, from the smallest that any two values have to the largest; untested."""
    num = min(len(ours), len(theirs))
    if not num:
        return _UNTOLD
    centre = float(ours.mean() - theirs.mean())
    if num == 1:
        return _Evidence(Interval(math.exp(centre), math.nan, math.nan, 1), math.nan, centre, math.nan)
    low, high = float(ours.min() - theirs.max()), float(ours.max() - theirs.min())
    ratio = Interval(math.exp(centre), math.exp(low), math.exp(high), num)
    return _Evidence(ratio, math.nan, centre, math.sqrt(ours.var(ddof=1) + theirs.var(ddof=1)))


def _judge(evidence: list[_Evidence], words: tuple[Word, Word], alpha: float, same_within: float) -> list[Verdict]:
    """words: for a ratio above 1 and for one below."""
    is_enough = [one.ratio.num >= FEWEST_ROUNDS for one in evidence]
    p_values = holm([one.p_value if enough else math.nan for one, enough in zip(evidence, is_enough, strict=True)])
    num_comparisons = sum(one.ratio.num > 0 for one in evidence)
    verdicts = []
    for one, enough, p in zip(evidence, is_enough, p_values, strict=True):
        word: Word = "not enough data"
        if enough and 1 / (1 + same_within) <= one.ratio.low and one.ratio.high <= 1 + same_within:
            word = "same"
        elif p <= alpha:
            word = words[0] if one.ratio.value > 1 else words[1]
        is_open = word == "not enough data"
        more = _more_rounds(one, alpha, max(1, num_comparisons), same_within) if is_open else 0
        verdicts.append(Verdict(word, one.ratio, p, one.ratio.num, more))
    return verdicts


def _more_rounds(evidence: _Evidence, alpha: float, num_comparisons: int, same_within: float) -> int:
    """Rounds until the difference seen would be found, or be small enough to be called the same, whichever is fewer."""
    num, fewest = evidence.ratio.num, fewest_rounds(num_comparisons, alpha=alpha)
    if num < 2:
        return fewest - num
    centre, sd = abs(evidence.centre), evidence.sd
    needed = math.inf
    ratio = math.exp(min(centre, 1.0))
    if ratio > 1:
        needed = rounds_needed(sd, ratio, alpha=alpha, num_comparisons=num_comparisons)
    margin = math.log1p(same_within) - centre
    if margin > 0:
        half_widths = float(ndtri(_POWER) - ndtri(alpha / 2)) * sd / margin
        needed = min(needed, max(FEWEST_ROUNDS, math.ceil(half_widths**2)))
    return max(1, int(needed) - num)
