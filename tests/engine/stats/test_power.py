"""Promised numbers of rounds and smallest differences, checked by simulating the test itself."""

import math

import numpy as np
import pytest

from engine.stats import FIRST_LOOK, compare_independent, max_t, noise_of, rounds_at, rounds_needed, smallest_ratio
from engine.stats.looks import look_after, next_look, share_of


def found_share(noise_sd: float, num_rounds: int, ratio: float, num_comparisons: int, num_trials: int) -> float:
    """Return the share of simulated plans whose look at `num_rounds` detects a true ratio of one configuration."""
    random, look, found = np.random.default_rng(num_rounds), look_after(num_rounds), 0
    for _ in range(num_trials):
        figures = random.normal(0, noise_sd / math.sqrt(2), (num_rounds, num_comparisons + 1))
        differences = figures[:, 1:] - figures[:, :1]
        differences[:, 0] += math.log(ratio)
        found += max_t(differences)[0] <= 0.05 * share_of(look)
    return found / num_trials


@pytest.mark.parametrize(("num_rounds", "num_comparisons"), [(8, 1), (8, 4), (8, 32), (12, 1), (12, 8)])
@pytest.mark.parametrize("power", [0.5, 0.8, 0.9])
def test_the_smallest_ratio_is_found_as_often_as_promised(num_rounds: int, num_comparisons: int, power: float) -> None:
    ratio = smallest_ratio(0.07, num_rounds, power=power, num_comparisons=num_comparisons)
    assert found_share(0.07, num_rounds, ratio, num_comparisons, 400) == pytest.approx(power, abs=0.1)


@pytest.mark.parametrize(("noise_sd", "ratio"), [(0.02, 1.05), (0.03, 0.95), (0.07, 1.1)])
def test_the_rounds_needed_are_enough_and_the_look_before_is_not(noise_sd: float, ratio: float) -> None:
    num_rounds = rounds_needed(noise_sd, ratio)
    assert rounds_at(look_after(num_rounds)) == num_rounds
    assert found_share(noise_sd, num_rounds, ratio, 1, 150) > 0.7
    if num_rounds > FIRST_LOOK:
        assert found_share(noise_sd, rounds_at(look_after(num_rounds) - 1), ratio, 1, 150) < 0.85


def test_rounds_and_ratios_agree() -> None:
    for num_rounds in map(rounds_at, (0, 1, 3, 6, 9)):
        ratio = smallest_ratio(0.05, num_rounds)
        assert rounds_needed(0.05, ratio * (1 + 1e-9)) == num_rounds
        assert rounds_needed(0.05, 1 / ratio * (1 - 1e-9)) == num_rounds
        assert rounds_needed(0.05, 1 + (ratio - 1) * 0.9) > num_rounds


def test_more_noise_and_more_comparisons_need_more_rounds() -> None:
    by_noise = [rounds_needed(noise, 1.05) for noise in (0.0, 0.02, 0.05, 0.1, 0.3)]
    assert by_noise == sorted(by_noise)
    assert by_noise[0] == FIRST_LOOK
    by_number = [rounds_needed(0.05, 1.05, num_comparisons=number) for number in (1, 4, 40, 199)]
    assert by_number == sorted(by_number)
    assert by_number[0] < by_number[-1]


def test_the_fewest_rounds_of_a_verdict_do_not_depend_on_the_number_of_comparisons() -> None:
    assert FIRST_LOOK == 8
    for number in (1, 9, 199):
        assert smallest_ratio(0.01, FIRST_LOOK - 1, num_comparisons=number) == math.inf
        assert smallest_ratio(0.01, FIRST_LOOK, num_comparisons=number) < 1.05


def test_looks_spend_alpha_and_no_more() -> None:
    assert sum(map(share_of, range(200_000))) == pytest.approx(1, abs=1e-4)
    assert sum(map(share_of, range(200_000))) < 1
    looks = [rounds_at(look) for look in range(20)]
    assert looks == sorted(set(looks))
    assert [look_after(num) for num in (7, 8, 11, 12)] == [-1, 0, 0, 1]
    assert [next_look(num) for num in (0, 7, 8, 12)] == [8, 8, 12, 16]
    assert 0.05 * share_of(0) / 2 >= 2 / 2**FIRST_LOOK


@pytest.mark.parametrize("ratio", [1, 0, -1])
def test_a_ratio_that_is_no_difference_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="no number of rounds detects it"):
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
    needed = [rounds_needed(0.02, ratio) for ratio in (1.001, 1 + 1e-12, 1 - 1e-13)]
    assert needed[0] < needed[1] == needed[2] == rounds_at(40)


def test_means_that_differ_by_rounding_alone_are_judged() -> None:
    ours = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.2]
    theirs = [value * (1 + each) for value, each in zip(ours, (2e-16, -2e-16) * 4, strict=True)]
    assert compare_independent(ours, theirs, is_more_better=True).word in ("same", "not enough data")
