"""Verdicts: how often they are wrong, how often they detect a difference, their wording, and Holm's correction."""

import math

import numpy as np
import pytest

from engine.stats import FIRST_LOOK, compare, compare_many, compare_spread, holm, rounds_needed
from engine.stats.looks import share_of

Figures = dict[int, float]


def measured(random: np.random.Generator, num: int, level: float = 50.0, noise_sd: float = 0.05) -> Figures:
    """Return the figures of `num` rounds."""
    return dict(enumerate((level * np.exp(random.normal(0, noise_sd, num))).tolist()))


def pair(random: np.random.Generator, num: int, ratio: float = 1.0, noise_sd: float = 0.05) -> tuple[Figures, Figures]:
    """Return two configurations measured in the same rounds, which drift by tens of percent."""
    drift = np.exp(np.cumsum(random.normal(0, 0.1, num)))
    ours, theirs = (measured(random, num, level, noise_sd) for level in (50 * ratio, 50.0))
    return tuple({number: value * drift[number] for number, value in given.items()} for given in (ours, theirs))  # type: ignore[return-value]


@pytest.mark.parametrize("num", [8, 10, 12, 23])
def test_equal_configurations_are_seldom_called_different(num: int) -> None:
    random = np.random.default_rng(num)
    num_trials = 300 if num > 13 else 1500
    words = [compare(*pair(random, num)).word for _ in range(num_trials)]
    wrong = sum(word in ("faster", "slower") for word in words) / num_trials
    assert wrong < 0.05 + 3 * math.sqrt(0.05 * 0.95 / num_trials)


def test_a_difference_is_found_with_the_rounds_that_were_computed() -> None:
    random, noise_sd = np.random.default_rng(1), 0.03
    num = rounds_needed(noise_sd * math.sqrt(2), 1.05)
    words = [compare(*pair(random, num, ratio=1 / 1.05, noise_sd=noise_sd)).word for _ in range(400)]
    assert words.count("slower") / 400 > 0.75
    assert words.count("faster") == 0


def test_among_many_equal_configurations_seldom_any_is_called_different() -> None:
    random, num_trials = np.random.default_rng(2), 200
    wrong = 0
    for _ in range(num_trials):
        baseline = measured(random, 12)
        verdicts = compare_many([(measured(random, 12), baseline) for _ in range(8)])
        wrong += any(verdict.word in ("faster", "slower") for verdict in verdicts)
    assert wrong / num_trials < 0.05 + 3 * math.sqrt(0.05 * 0.95 / num_trials)


@pytest.mark.parametrize("num", range(FIRST_LOOK))
def test_before_the_first_look_there_is_no_verdict(num: int) -> None:
    ours, theirs = (dict.fromkeys(range(num), level) for level in (100.0, 1.0))
    found = compare(ours, theirs)
    assert (found.word, found.num_rounds, found.more_rounds) == ("not enough data", num, FIRST_LOOK - num)
    assert math.isnan(found.p_value)
    assert math.isfinite(found.ratio.low) == (num >= 2)


def test_only_common_rounds_with_usable_figures_count() -> None:
    ours = dict.fromkeys(range(8), 2.0) | {8: math.nan, 9: 0.0, 10: 9.0}
    theirs = dict.fromkeys(range(10), 1.0)
    found = compare(ours, theirs)
    assert (found.word, found.num_rounds) == ("faster", 8)
    assert found.ratio == pytest.approx((2.0, 2.0, 2.0, 8))
    assert found.p_value == 2 / 256 / share_of(0)
    assert compare({0: 1.0}, {1: 1.0}).ratio.num == 0


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "faster"),
        ({"is_more_better": False}, "slower"),
        ({"is_more_better": None}, "more"),
        ({"is_more_better": False, "words": ("less", "more")}, "more"),
        ({"is_more_better": True, "words": ("more", "less")}, "more"),
    ],
)
def test_words_when_ours_is_larger(options: dict[str, object], word: str) -> None:
    ours, theirs = {n: 2.0 + n for n in range(8)}, {n: 1.0 + 0.1 * n for n in range(8)}
    assert compare(ours, theirs, **options).word == word  # type: ignore[arg-type]
    opposite = {"faster": "slower", "slower": "faster", "more": "less"}[word]
    assert compare(theirs, ours, **options).word == opposite  # type: ignore[arg-type]


def test_the_same_within_two_percent_even_where_the_difference_is_real() -> None:
    theirs = measured(np.random.default_rng(3), 10)
    ours = {number: value * 1.01 for number, value in theirs.items()}
    found = compare(ours, theirs)
    assert (found.word, found.more_rounds) == ("same", 0)
    assert found.p_value < 0.05
    assert compare(ours, theirs, same_within=0.005).word == "faster"


def test_more_rounds_are_about_as_many_as_it_takes() -> None:
    random, words = np.random.default_rng(4), []
    for _ in range(40):
        ours, theirs = pair(random, 60, ratio=1.06, noise_sd=0.05)
        first = compare({n: ours[n] for n in range(7)}, {n: theirs[n] for n in range(7)})
        if first.word == "not enough data":
            assert first.more_rounds >= 1
            num = min(60, 7 + first.more_rounds)
            words.append(compare({n: ours[n] for n in range(num)}, {n: theirs[n] for n in range(num)}).word)
    assert len(words) > 10
    assert sum(word != "not enough data" for word in words) > len(words) / 2


@pytest.mark.parametrize("num_configurations", [1, 8, 40, 199])
def test_eight_rounds_that_agree_are_enough_whatever_the_number_of_configurations(num_configurations: int) -> None:
    random = np.random.default_rng(num_configurations)
    control = measured(random, 8, level=400, noise_sd=0.02)
    fast = measured(random, 8, level=5500, noise_sd=0.02)
    others = [measured(random, 8, level=400, noise_sd=0.02) for _ in range(num_configurations - 1)]
    found = compare_many([(ours, control) for ours in (fast, *others)])
    assert found[0].word == "faster"
    assert not {"faster", "slower"} & {verdict.word for verdict in found[1:]}


def test_a_steady_difference_is_found_beside_a_noisy_rival() -> None:
    found = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        control = measured(random, 8, noise_sd=0.005)
        steady, wild = measured(random, 8, level=55, noise_sd=0.005), measured(random, 8, noise_sd=1.0)
        found += compare_many([(steady, control), (wild, control)])[0].word == "faster"
    assert found == 40


def test_a_verdict_stands_until_later_rounds_turn_the_difference_round() -> None:
    theirs = dict.fromkeys(range(40), 1.0)
    ours = {number: 1.1 if number < 8 else 1.0 + 0.3 * (-1) ** number for number in range(40)}
    for num in (8, 11, 12, 16):
        part = [{number: given[number] for number in range(num)} for given in (ours, theirs)]
        assert compare(*part).word == "faster"
    falling = {number: 1.1 if number < 8 else 0.8 for number in range(40)}
    assert compare({n: falling[n] for n in range(16)}, dict.fromkeys(range(16), 1.0)).word == "not enough data"
    assert compare(falling, theirs).word == "slower"


def test_a_configuration_of_few_rounds_is_no_member_of_the_family() -> None:
    random = np.random.default_rng(8)
    control, few = measured(random, 8), dict.fromkeys(range(5), 90.0)
    (verdict,) = compare_many([(few, control)])
    assert (verdict.word, verdict.num_rounds) == ("not enough data", 5)
    assert math.isnan(verdict.p_value)
    ours = measured(random, 8, level=60)
    together = compare_many([(ours, control), (few, control)])
    assert together[0] == compare(ours, control)


def test_families_measured_together_and_apart_share_alpha() -> None:
    ours, theirs = dict.fromkeys(range(8), 2.0), {number: 1.0 + 0.01 * number for number in range(8)}
    alone = compare(ours, theirs)
    both = compare_many([(ours, theirs), (ours, theirs)], [True, False])
    assert both[0].p_value == 2 * alone.p_value
    assert [verdict.word for verdict in both] == ["faster", "faster"]


def test_cells_with_different_numbers_of_rounds_are_judged_as_they_would_be_alone() -> None:
    random = np.random.default_rng(5)
    pairs = [pair(random, num, ratio=1.1) for num in (0, 3, 8, 8, 12, 20, 30)]
    found = compare_many(pairs)
    for verdict, (ours, theirs) in zip(found, pairs, strict=True):
        alone = compare(ours, theirs)
        assert verdict.num_rounds == len(ours)
        assert verdict.ratio == pytest.approx(alone.ratio, rel=0.01, nan_ok=True)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    with_nan = holm([0.02, math.nan, 0.04])
    assert (with_nan[0], with_nan[2]) == (0.04, 0.04)
    assert math.isnan(with_nan[1])


@pytest.mark.parametrize("num", [8, 10, 16])
def test_equal_spreads_are_seldom_called_different(num: int) -> None:
    random, num_trials = np.random.default_rng(num), 400
    words = [compare_spread(measured(random, num), measured(random, num)).word for _ in range(num_trials)]
    wrong = sum(word in ("steadier", "less steady") for word in words) / num_trials
    assert wrong < 0.05 + 3 * math.sqrt(0.05 * 0.95 / num_trials)


def test_a_steadier_one_is_found() -> None:
    random = np.random.default_rng(6)
    calm, wild = measured(random, 24, noise_sd=0.01), measured(random, 24, level=70, noise_sd=0.08)
    steadier, less = compare_spread(calm, wild), compare_spread(wild, calm)
    assert (steadier.word, less.word) == ("steadier", "less steady")
    assert steadier.ratio.low < steadier.ratio.value < steadier.ratio.high < 1 < less.ratio.low
    assert compare_spread({0: 1.0}, {0: 2.0}).word == "not enough data"
