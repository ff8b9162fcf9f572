"""Verdict in words on two configurations, measured in the same rounds or separately."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from scipy.special import ndtri

from engine.stats.evidence import NO_EVIDENCE, ByRound, Evidence, Pair, apart, paired, spread
from engine.stats.intervals import Interval
from engine.stats.looks import FIRST_LOOK, look_after, next_look, rounds_at
from engine.stats.power import rounds_needed

Word = Literal["faster", "slower", "more", "less", "steadier", "less steady", "same", "not enough data"]
SAME_WITHIN = 0.02
SPREAD_SAME_WITHIN = 0.25
_POWER = 0.8


class Verdict(NamedTuple):
    """Verdict on one figure of ours against theirs.

    ratio: ours / theirs, geometric mean over all common rounds, with the interval that a single test of these alone
    would not reject; of two measured separately the ratio of their geometric means. p_value: corrected for the number
    of comparisons and for repeated looks, to be compared with alpha; NaN before the first look. num_rounds: common
    rounds; of two measured separately, those of the one with fewer. more_rounds: number of further rounds, of both,
    that would probably give a verdict, estimated from the observed noise; 0 where there is a verdict.
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
    """Return the verdict on one figure, given by round; see `compare_many`."""
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
    """Return the verdict on one figure whose rounds were measured separately; see `compare_many`."""
    pair = dict(enumerate(ours)), dict(enumerate(theirs))
    (verdict,) = compare_many(
        [pair], [False], is_more_better=is_more_better, words=words, alpha=alpha, same_within=same_within
    )
    return verdict


def compare_many(
    pairs: Sequence[Pair],
    is_paired: Sequence[bool] | None = None,
    *,
    is_more_better: bool | None = True,
    words: tuple[Word, Word] | None = None,
    alpha: float = 0.05,
    same_within: float = SAME_WITHIN,
) -> list[Verdict]:
    """Return verdicts on several pairs (ours, theirs) of figures by round.

    They are corrected for the number of comparisons and for repeated looks. is_paired: for each pair whether its rounds
    were measured together (None: all of them). The paired ones form one family: sign flips of the log-ratios of the
    common rounds, by `max_t`. The others form a second family: permutation tests on the difference of the mean
    logarithms, which cannot account for other differences between the two occasions, with Holm's correction. Where
    there are both, each gets half of alpha. Tests are run only at `looks`, so that adding rounds until there is a
    verdict reports any false difference with probability alpha at most.

    Figures that are not positive are left out. "same" comes first, where the whole interval is within `same_within` of
    1: such a difference may be real but does not matter. It is not corrected, neither for the number of comparisons nor
    for repeated looks. words: for ours better and for ours worse; where is_more_better is None, for more and for less.
    """
    better, worse = words or (("more", "less") if is_more_better is None else ("faster", "slower"))
    larger_smaller = (worse, better) if is_more_better is False else (better, worse)
    kinds = [True] * len(pairs) if is_paired is None else is_paired
    num_families = max(1, len(set(kinds)))
    found = [NO_EVIDENCE] * len(pairs)
    for kind, evidence in ((True, paired), (False, apart)):
        numbers = [number for number, one in enumerate(kinds) if one is kind]
        chosen = [pairs[number] for number in numbers]
        for number, one in zip(numbers, evidence(chosen, alpha, num_families), strict=True):
            found[number] = one
    return [_judge(one, larger_smaller, alpha, same_within, len(pairs)) for one in found]


def compare_spread(
    ours: ByRound, theirs: ByRound, *, alpha: float = 0.05, same_within: float = SPREAD_SAME_WITHIN
) -> Verdict:
    """Return whether ours varies less from round to round ("steadier") or more ("less steady") than theirs.

    A sign-flip test on the paired differences of the absolute deviations of the logarithms from their own median;
    ratio: mean deviation of ours over that of theirs.
    """
    return _judge(spread(ours, theirs, alpha), ("less steady", "steadier"), alpha, same_within, 1)


def _judge(
    evidence: Evidence, words: tuple[Word, Word], alpha: float, same_within: float, num_comparisons: int
) -> Verdict:
    """Return the verdict that the evidence supports; words: for a ratio above 1 and for one below."""
    ratio, p_value = evidence.ratio, evidence.p_value
    is_looked_at = not math.isnan(p_value)
    word: Word = "not enough data"
    if is_looked_at and 1 / (1 + same_within) <= ratio.low and ratio.high <= 1 + same_within:
        word = "same"
    elif p_value <= alpha and evidence.is_one_way:  # otherwise later rounds have reversed the difference
        word = words[0] if ratio.value > 1 else words[1]
    more = _more_rounds(evidence, alpha, num_comparisons, same_within) if word == "not enough data" else 0
    return Verdict(word, ratio, p_value, ratio.num, more)


def _more_rounds(evidence: Evidence, alpha: float, num_comparisons: int, same_within: float) -> int:
    """Return the rounds missing until the observed difference is detected or called the same, whichever are fewer."""
    num = evidence.ratio.num
    if math.isnan(evidence.sd):
        return FIRST_LOOK - num
    centre, sd = abs(evidence.centre), evidence.sd
    needed = math.inf
    ratio = math.exp(min(centre, 1.0))
    if ratio > 1:
        needed = rounds_needed(sd, ratio, alpha=alpha, num_comparisons=num_comparisons)
    margin = math.log1p(same_within) - centre
    if margin > 0:
        half_widths = float(ndtri(_POWER) - ndtri(alpha / 2)) * sd / margin
        needed = min(needed, max(FIRST_LOOK, math.ceil(half_widths**2)))
    look = look_after(int(min(needed, 1e9)))
    at = rounds_at(look) if rounds_at(look) >= needed else rounds_at(look + 1)
    return max(at, next_look(num)) - num
