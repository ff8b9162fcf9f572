"""The numbers of rounds and the smallest differences that are promised, checked by simulating the test itself."""

import math

import numpy as np
import pytest

from engine.stats import FEWEST_ROUNDS, fewest_rounds, noise_of, rounds_needed, smallest_ratio
from engine.stats.sign_flips import flip_signs
from engine.stats.verdicts import compare_independent


def found_share(noise_sd: float, num_rounds: int, ratio: float, alpha: float = 0.05, num_trials: int = 4000) -> float:
    """Part of simulated comparisons in which the sign-flip test finds a true ratio."""
    share, size = [], 250 if num_rounds > 10 else num_trials
    for seed in range(-(-num_trials // size)):
        logs = np.random.default_rng(seed).normal(math.log(ratio), noise_sd, (num_rounds, size))
        share.append(np.mean(flip_signs(logs, np.ones_like(logs), null=0.0).p_values <= alpha))
    return float(np.mean(share))


@pytest.mark.parametrize("num_rounds", [6, 7, 8, 10, 14, 25])
@pytest.mark.parametrize("power", [0.5, 0.8, 0.9])
def test_the_smallest_ratio_is_found_as_often_as_promised(num_rounds: int, power: float) -> None:
    ratio = smallest_ratio(0.07, num_rounds, power=power)
    num_trials = 4000 if num_rounds <= 10 else 1000
    assert found_share(0.07, num_rounds, ratio, num_trials=num_trials) == pytest.approx(power, abs=0.045)


@pytest.mark.parametrize(("num_rounds", "num_comparisons"), [(8, 5), (10, 7), (10, 20), (13, 50)])
def test_it_is_found_among_many_comparisons_too(num_rounds: int, num_comparisons: int) -> None:
    ratio = smallest_ratio(0.07, num_rounds, num_comparisons=num_comparisons)
    share = found_share(0.07, num_rounds, ratio, alpha=0.05 / num_comparisons, num_trials=2000)
    assert share == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize(("noise_sd", "ratio"), [(0.02, 1.05), (0.03, 1.05), (0.03, 0.96), (0.07, 1.1)])
def test_the_rounds_needed_are_enough_and_one_less_is_not(noise_sd: float, ratio: float) -> None:
    num_rounds = rounds_needed(noise_sd, ratio)
    assert num_rounds >= FEWEST_ROUNDS
    assert found_share(noise_sd, num_rounds, ratio, num_trials=2000) > 0.77
    if num_rounds > FEWEST_ROUNDS:
        assert found_share(noise_sd, num_rounds - 1, ratio, num_trials=2000) < 0.83


def test_rounds_and_ratios_agree() -> None:
    for num_rounds in (6, 9, 15, 60, 400):
        ratio = smallest_ratio(0.05, num_rounds)
        assert rounds_needed(0.05, ratio * (1 + 1e-9)) == num_rounds
        assert rounds_needed(0.05, 1 / ratio * (1 - 1e-9)) == num_rounds
        assert rounds_needed(0.05, 1 + (ratio - 1) * 0.9) > num_rounds


def test_more_noise_and_more_comparisons_need_more_rounds() -> None:
    by_noise = [rounds_needed(noise, 1.05) for noise in (0.0, 0.02, 0.05, 0.1, 0.3)]
    assert by_noise == sorted(by_noise)
    assert by_noise[0] == FEWEST_ROUNDS
    by_number = [rounds_needed(0.05, 1.05, num_comparisons=number) for number in (1, 4, 40, 199)]
    assert by_number == sorted(by_number)
    assert by_number[0] < by_number[-1]


def test_five_rounds_tell_nothing_and_nor_do_six_with_three_comparisons() -> None:
    assert smallest_ratio(0.01, 5) == math.inf
    assert smallest_ratio(0.01, 6) < 1.03
    assert smallest_ratio(0.01, 6, num_comparisons=3) == math.inf
    assert fewest_rounds() == FEWEST_ROUNDS == 6
    assert fewest_rounds(3) == 7
    assert [2 / 2 ** fewest_rounds(number) <= 0.05 / number for number in range(1, 200)] == [True] * 199
    assert [2 / 2 ** (fewest_rounds(number) - 1) > 0.05 / number for number in range(2, 200)] == [True] * 198


@pytest.mark.parametrize("ratio", [1, 0, -1])
def test_a_ratio_that_is_no_difference_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="no number of rounds finds it"):
        rounds_needed(0.05, ratio)


def test_noise_is_that_of_a_ratio_of_neighbours() -> None:
    random = np.random.default_rng(0)
    drift = np.linspace(0, 0.5, 4000)
    values = 50 * np.exp(drift + random.normal(0, 0.03, 4000))
    assert noise_of(values) == pytest.approx(0.03 * math.sqrt(2), rel=0.05)
    assert noise_of([10.0, math.nan, 11.0, 0.0]) == pytest.approx(math.log(1.1))
    assert math.isnan(noise_of([10.0]))
    assert noise_of([10.0, 10.0, 10.0]) == 0


def test_a_difference_of_next_to_nothing_needs_rounds_without_end() -> None:
    for ratio in (1 + 1e-15, 1 + 1e-12, 1 - 1e-13):
        needed = rounds_needed(0.02, ratio)
        assert needed == pytest.approx(((1.959964 + 0.841621) * 0.02 / abs(math.log(ratio))) ** 2, rel=1e-5)
    num = 1_000_000  # where the two ways to count meet
    ratio = math.exp((1.959964 + 0.841621) * 0.02 / math.sqrt(num))
    assert rounds_needed(0.02, ratio) == pytest.approx(rounds_needed(0.02, ratio * (1 + 1e-9)), rel=1e-3)


def test_means_that_differ_by_rounding_alone_are_judged() -> None:
    ours = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.2]
    theirs = [value * (1 + each) for value, each in zip(ours, (2e-16, -2e-16) * 4, strict=True)]
    assert compare_independent(ours, theirs, is_more_better=True).word in ("same", "not enough data")
