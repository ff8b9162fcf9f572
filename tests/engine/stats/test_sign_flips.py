"""The sign-flip test against scipy and against a hand calculation; its interval against the test itself."""

import math

import numpy as np
import pytest
from scipy import stats

from engine.stats import sign_flip_p
from engine.stats.sign_flips import MOST_EXACT, flip_signs


def scipy_p(differences: np.ndarray, num_flips: float) -> float:
    found = stats.permutation_test(
        (differences,),
        lambda x, axis: np.mean(x, axis=axis),
        permutation_type="samples",
        n_resamples=num_flips,
        vectorized=True,
        rng=np.random.default_rng(5),
    )
    return float(found.pvalue)


@pytest.mark.parametrize("num", [2, 5, 6, 9, MOST_EXACT])
def test_few_rounds_give_exactly_the_p_value_of_scipy(num: int) -> None:
    for seed in range(5):
        differences = np.random.default_rng(seed).normal(0.3, 1, num)
        assert sign_flip_p(differences) == pytest.approx(scipy_p(differences, math.inf), abs=1e-12)


@pytest.mark.parametrize("num", [MOST_EXACT + 1, 40])
def test_many_rounds_give_nearly_the_p_value_of_scipy(num: int) -> None:
    for seed in range(3):
        differences = np.random.default_rng(seed).normal(0.3, 1, num)
        expected = scipy_p(differences, 50_000)
        assert sign_flip_p(differences) == pytest.approx(expected, abs=0.015)
        assert sign_flip_p(differences) == sign_flip_p(differences)


def test_by_hand() -> None:
    assert sign_flip_p(np.array([1.0, 2.0, 3.0])) == 2 / 8
    assert sign_flip_p(np.array([1.0, 2.0, -3.0])) == 1
    assert sign_flip_p(np.array([-1.0, 2.0, 3.0])) == 4 / 8
    assert sign_flip_p(np.ones(6)) == 2 / 64
    assert sign_flip_p(np.zeros(6)) == 1
    assert sign_flip_p(np.array([0.1, 0.2, 0.3, 0.1, 0.2, 0.3])) == 2 / 64


@pytest.mark.parametrize("num", [6, 9, 12])
def test_the_interval_holds_just_what_the_test_does_not_refuse(num: int) -> None:
    values = np.random.default_rng(num).normal(0.2, 1, num)
    column = values[:, None]
    found = flip_signs(column, np.ones_like(column), null=0.0)
    low, high = float(found.lows[0]), float(found.highs[0])
    for bound, inward in ((low, 1e-6), (high, -1e-6)):
        assert sign_flip_p(values - bound - inward) > 0.05
        assert sign_flip_p(values - bound + inward) <= 0.05


@pytest.mark.parametrize("num", [6, 8, 13, 30])
def test_the_interval_holds_the_true_mean_as_often_as_it_says(num: int) -> None:
    num_trials = 1000
    values = np.random.default_rng(num).laplace(0.5, 1, (num, num_trials))
    found = flip_signs(values, np.ones_like(values), null=0.0)
    share = np.mean((found.lows <= 0.5) & (found.highs >= 0.5))
    assert 0.935 < share < 0.985


def test_a_ratio_of_sums_is_tested_as_the_difference_from_it() -> None:
    random = np.random.default_rng(0)
    ours, theirs = np.abs(random.standard_normal((2, 10, 3)))
    found = flip_signs(ours, theirs, null=1.0)
    for column in range(3):
        assert found.p_values[column] == sign_flip_p(ours[:, column] - theirs[:, column])
        assert found.lows[column] < ours[:, column].sum() / theirs[:, column].sum() < found.highs[column]


def test_columns_filled_up_with_zeros_are_judged_by_their_own_rounds() -> None:
    values = np.random.default_rng(4).normal(0.4, 1, 16)
    columns, is_there = np.zeros((60, 2)), np.zeros((60, 2))
    columns[:16, 0], is_there[:16, 0] = values, 1
    columns[:, 1], is_there[:, 1] = 0.1, 1
    found = flip_signs(columns, is_there, null=0.0)
    alone = flip_signs(values[:, None], np.ones((16, 1)), null=0.0)
    assert found.p_values[0] == pytest.approx(alone.p_values[0], abs=0.01)
    assert found.lows[0] == pytest.approx(alone.lows[0], abs=0.05)
    assert found.highs[0] == pytest.approx(alone.highs[0], abs=0.05)
    assert found.lows[1] == pytest.approx(0.1)
