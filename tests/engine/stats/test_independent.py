"""Verdicts on figures that were not measured in the same rounds."""

import math

import numpy as np
import pytest

from engine.stats import FIRST_LOOK, compare, compare_independent, compare_many, rounds_needed

DIFFERENT = ("faster", "slower")


def measured(random: np.random.Generator, num: int, level: float = 50.0, noise_sd: float = 0.05) -> list[float]:
    """Return the figures of `num` rounds."""
    found: list[float] = (level * np.exp(random.normal(0, noise_sd, num))).tolist()
    return found


@pytest.mark.parametrize(("num_ours", "num_theirs", "noise_sd"), [(6, 6, 0.05), (8, 8, 0.15), (8, 24, 0.1)])
def test_equal_configurations_are_seldom_called_different(num_ours: int, num_theirs: int, noise_sd: float) -> None:
    random, num_trials = np.random.default_rng(num_theirs), 300
    pairs = [(measured(random, num_ours, noise_sd=noise_sd), measured(random, num_theirs)) for _ in range(num_trials)]
    wrong = sum(compare_independent(*pair).word in DIFFERENT for pair in pairs) / num_trials
    assert wrong < 0.06 + 3 * math.sqrt(0.06 * 0.94 / num_trials)


def test_a_difference_is_found_with_the_rounds_that_were_computed() -> None:
    random, noise_sd = np.random.default_rng(1), 0.02
    num = rounds_needed(noise_sd * math.sqrt(2), 1.05)
    words = [
        compare_independent(measured(random, num, 50 / 1.05, noise_sd), measured(random, num, 50, noise_sd)).word
        for _ in range(200)
    ]
    assert words.count("slower") / 200 > 0.75
    assert words.count("faster") == 0


def test_the_interval_holds_the_true_ratio() -> None:
    random = np.random.default_rng(2)
    found = [compare_independent(measured(random, 8, 60, 0.1), measured(random, 12)).ratio for _ in range(300)]
    assert 0.91 < np.mean([one.low <= 1.2 <= one.high for one in found]) < 0.99
    assert {one.num for one in found} == {8}


def test_rounds_that_drift_together_are_told_apart_only_in_pairs() -> None:
    random = np.random.default_rng(3)
    drift = np.exp(np.cumsum(random.normal(0, 0.1, 12)))
    ours, theirs = (np.array(measured(random, 12, level, 0.01)) * drift for level in (52.0, 50.0))
    paired = compare(dict(enumerate(ours)), dict(enumerate(theirs)))
    apart = compare_independent(ours.tolist(), theirs.tolist())
    assert paired.word == "faster"
    assert apart.word == "not enough data"
    assert apart.more_rounds > 20
    assert paired.ratio.value == pytest.approx(apart.ratio.value)


@pytest.mark.parametrize(("num_ours", "num_theirs"), [(0, 8), (1, 8), (5, 20), (20, 5), (1, 1)])
def test_below_six_rounds_of_either_there_is_no_verdict(num_ours: int, num_theirs: int) -> None:
    found = compare_independent([100.0] * num_ours, [1.0, 2.0] * 10 if num_theirs == 20 else [1.0] * num_theirs)
    fewer = min(num_ours, num_theirs)
    assert (found.word, found.num_rounds) == ("not enough data", fewer)
    assert found.more_rounds >= FIRST_LOOK - fewer
    assert math.isnan(found.p_value)
    assert math.isfinite(found.ratio.low) == (fewer >= 2)


def test_few_rounds_have_the_range_of_their_ratios() -> None:
    found = compare_independent([4.0, 6.0], [2.0, 3.0, 1.0]).ratio
    assert found == pytest.approx((math.sqrt(24) / 6 ** (1 / 3), 4 / 3, 6.0, 2))


def test_figures_that_are_not_positive_do_not_count() -> None:
    found = compare_independent([2.0] * 8 + [math.nan, 0.0, -1.0, math.inf], [1.0] * 9)
    assert (found.word, found.num_rounds) == ("faster", 8)
    assert found.ratio.value == pytest.approx(2.0)


def test_the_same_within_two_percent() -> None:
    random = np.random.default_rng(4)
    found = compare_independent(measured(random, 10, 50.1, 0.003), measured(random, 10, 50, 0.003))
    assert (found.word, found.more_rounds) == ("same", 0)


def test_words_are_those_of_the_metric() -> None:
    more, less = [2.0, 2.1, 2.2, 1.9, 2.3, 2.05, 2.0, 2.1], [1.0, 1.1, 1.2, 0.9, 1.3, 1.05, 1.0, 1.1]
    assert compare_independent(more, less, is_more_better=False).word == "slower"
    assert compare_independent(more, less, is_more_better=None).word == "more"
    assert compare_independent(less, more, is_more_better=False, words=("less", "more")).word == "less"


def test_pairs_and_samples_measured_apart_are_corrected_together() -> None:
    random = np.random.default_rng(5)
    base = dict(enumerate(measured(random, 8, 50, 0.02)))
    close = dict(enumerate(value * 1.04 for value in base.values()))
    apart = dict(enumerate(measured(random, 8, 60, 0.02)))
    alone = compare_many([(close, base)])
    both = compare_many([(close, base), (apart, base)], [True, False])
    assert both[0].p_value == pytest.approx(2 * alone[0].p_value)
    assert [verdict.word for verdict in both] == ["faster", "faster"]
    assert both[1].p_value == pytest.approx(2 * compare_independent([*apart.values()], [*base.values()]).p_value)
