"""Medians and their intervals: by hand, against numpy, and how often they hold the true median."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from engine.stats import Interval, group_median_intervals, group_medians, median_interval

DRAWS: dict[str, Callable[[np.random.Generator, tuple[int, int]], npt.NDArray[np.float64]]] = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "skewed": lambda random, shape: random.exponential(1.0, shape) - math.log(2),
    "heavy-tailed": lambda random, shape: random.standard_cauchy(shape),
}
"""Distributions with median 0."""


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("num", [6, 7, 8, 10, 15, 40])
def test_the_interval_holds_the_median_as_often_as_it_says(
    num: int, draw: Callable[..., npt.NDArray[np.float64]]
) -> None:
    num_trials = 4000
    values = draw(np.random.default_rng(num), (num_trials, num))
    intervals = group_median_intervals(values.ravel(), np.repeat(np.arange(num_trials), num), num_trials)
    share = np.mean([interval.low <= 0 <= interval.high for interval in intervals])
    assert 0.94 < share < 0.975


def test_six_rounds_by_hand() -> None:
    # The range covers the median in 62 of 64 cases, the next values in 50; 95 % lies a tenth of the way between. This
    # becomes, by Hettmansperger and Sheather's formula, 5 · 0.1 / (1 + 4 · 0.1) of a step.
    found = median_interval([3.0, 1.0, 2.0, 6.0, 4.0, 5.0])
    assert found == pytest.approx((3.5, 1 + 0.5 / 1.4, 6 - 0.5 / 1.4, 6))


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], (None, None, None, 0)), ([7.0], (7.0, None, None, 1)), ([7.0, 9.0], (8.0, 7.0, 9.0, 2))],
)
def test_too_few_values_give_no_bounds(values: list[float], expected: tuple[float | None, ...]) -> None:
    found = median_interval(values)
    assert tuple(None if math.isnan(figure) else figure for figure in found) == expected


def test_fewer_than_six_rounds_give_their_range() -> None:
    assert median_interval([5.0, 1.0, 2.0, 4.0, 3.0]) == Interval(3.0, 1.0, 5.0, 5)


def test_values_of_one_round_count_as_one() -> None:
    rounds = np.repeat(np.arange(8), 100)
    steady = np.random.default_rng(0).standard_normal(8)[rounds] + 1e-3 * np.random.default_rng(1).standard_normal(800)
    by_rounds, by_values = median_interval(steady, rounds), median_interval(steady)
    assert by_rounds.num == 8
    assert by_rounds.high - by_rounds.low > 3 * (by_values.high - by_values.low)
    again = median_interval(np.append(steady, steady[:100]), np.append(rounds, rounds[:100]))
    assert again == by_rounds


def test_figures_that_were_not_measured_are_left_out() -> None:
    assert median_interval([1.0, math.nan, 2.0, math.inf, 3.0]) == Interval(2.0, 1.0, 3.0, 3)
    assert median_interval([1.0, math.nan], [0, 1]).num == 1


def test_medians_of_groups_are_numpys() -> None:
    random = np.random.default_rng(2)
    groups = np.sort(random.integers(0, 50, 600))
    values = random.standard_normal(600)
    values[random.random(600) < 0.1] = math.nan
    values[groups == 7] = math.nan
    found = group_medians(values, groups, 51)
    expected = [np.nan] * 51
    for group in range(51):
        measured = values[(groups == group) & np.isfinite(values)]
        expected[group] = float(np.median(measured)) if len(measured) else math.nan
    np.testing.assert_array_equal(found, expected)
    shuffled = random.permutation(600)
    np.testing.assert_array_equal(group_medians(values[shuffled], groups[shuffled], 51), expected)


def test_values_near_the_largest_have_a_median() -> None:
    values = np.array([1.0e308, 1.5e308, -1.5e308, -1.0e308])
    assert group_medians(values, np.array([0, 0, 1, 1]), 2).tolist() == [1.25e308, -1.25e308]


def test_a_higher_level_gives_a_wider_interval() -> None:
    values = np.random.default_rng(3).standard_normal(30)
    widths = [found.high - found.low for found in (median_interval(values, level=level) for level in (0.5, 0.9, 0.99))]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]
