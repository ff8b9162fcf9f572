"""Permutation test for samples measured apart: by hand, against scipy, its error rate, and its interval's coverage."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import permutation_test

from engine.stats.shuffles import MOST_EXACT, NUM_SHUFFLES, shuffle

Floats = npt.NDArray[np.float64]
NUM_TRIALS = 1200


def column(*values: float) -> Floats:
    return np.array(values, np.float64)[:, None]


def distance(ours: Floats, theirs: Floats, axis: int = -1) -> Floats:
    """Return the distance between the means in Welch's standard errors."""
    variance = ours.var(axis, ddof=1) / ours.shape[axis] + theirs.var(axis, ddof=1) / theirs.shape[axis]
    found: Floats = np.abs(ours.mean(axis) - theirs.mean(axis)) / np.sqrt(variance)
    return found


def test_by_hand() -> None:
    apart = shuffle(column(4, 5, 6), column(1, 2, 3))
    assert apart.p_values[0] == 2 / math.comb(6, 3)
    assert apart.differences[0] == 3
    mixed = shuffle(column(1, 2, 3, 4, 5, 6), column(1, 2, 3, 4, 5, 6))
    assert mixed.p_values[0] == 1
    assert mixed.lows[0] == pytest.approx(-mixed.highs[0])
    uneven = shuffle(column(7, 8), column(1, 2, 3, 4))
    assert uneven.p_values[0] == 1 / math.comb(6, 2)


def test_values_that_do_not_scatter() -> None:
    equal = shuffle(np.full((6, 1), 3.0), np.full((7, 1), 3.0))
    assert (equal.p_values[0], equal.lows[0], equal.highs[0]) == (1, 0, 0)
    apart = shuffle(np.full((6, 1), 4.0), np.full((6, 1), 3.0))
    assert (apart.p_values[0], apart.lows[0], apart.highs[0]) == (2 / math.comb(12, 6), 1, 1)


@pytest.mark.parametrize(("num_ours", "num_theirs"), [(6, 6), (6, 8), (8, 8)])
def test_all_ways_are_those_of_scipy(num_ours: int, num_theirs: int) -> None:
    random = np.random.default_rng(num_theirs)
    ours, theirs = random.normal(0.4, 1, (num_ours, 3)), random.normal(0, 2, (num_theirs, 3))
    found = shuffle(ours, theirs)
    for number in range(3):
        sides = (ours[:, number], theirs[:, number])
        exact = permutation_test(sides, distance, vectorized=True, n_resamples=np.inf, alternative="greater")
        assert found.p_values[number] == pytest.approx(exact.pvalue, abs=1e-12)


def test_random_ways_come_near_to_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    ours, theirs = random.normal(0.6, 1, (8, 5)), random.normal(0, 1, (8, 5))
    exact = shuffle(ours, theirs)
    monkeypatch.setattr("engine.stats.shuffles.MOST_EXACT", 1)
    drawn = shuffle(ours, theirs)
    assert drawn.p_values == pytest.approx(exact.p_values, abs=0.02)
    assert drawn.lows == pytest.approx(exact.lows, abs=0.05)
    assert not np.array_equal(drawn.p_values, exact.p_values)


def test_very_many_values_get_fewer_ways() -> None:
    random = np.random.default_rng(2)
    found = shuffle(random.normal(1, 1, (4000, 1)), random.normal(0, 1, (4000, 1)))
    assert math.comb(8, 4) < MOST_EXACT
    assert found.p_values[0] == pytest.approx(1 / (1 + (1 << 23) // 8000))
    assert found.p_values[0] > 1 / (NUM_SHUFFLES + 1)
    assert found.lows[0] == pytest.approx(found.differences[0] - 1.96 * math.sqrt(2 / 4000), abs=0.01)


def normal(random: np.random.Generator, num: int, sd: float) -> Floats:
    return random.normal(0, sd, (num, NUM_TRIALS))


def skewed(random: np.random.Generator, num: int, sd: float) -> Floats:
    """Return exponential values shifted to a mean of 0."""
    return sd * (random.exponential(1, (num, NUM_TRIALS)) - 1)


@pytest.mark.parametrize(
    ("draw", "num_ours", "num_theirs", "sd_ours", "most"),
    [
        (normal, 6, 6, 1.0, 0.05),
        (normal, 8, 8, 1.0, 0.05),
        (skewed, 8, 8, 1.0, 0.05),
        (normal, 8, 30, 1.0, 0.05),
        (normal, 8, 8, 5.0, 0.075),
        (normal, 8, 30, 5.0, 0.075),
        (normal, 30, 8, 5.0, 0.05),
    ],
)
def test_equal_means_are_refused_as_seldom_as_it_says(
    draw: Callable[[np.random.Generator, int, float], Floats],
    num_ours: int,
    num_theirs: int,
    sd_ours: float,
    most: float,
) -> None:
    random = np.random.default_rng(num_ours * 100 + num_theirs)
    found = shuffle(draw(random, num_ours, sd_ours), draw(random, num_theirs, 1.0))
    noise = 3 * math.sqrt(most * (1 - most) / NUM_TRIALS)
    assert np.mean(found.p_values <= 0.05) < most + noise
    covered = np.mean((found.lows <= 0) & (found.highs >= 0))
    assert covered > 1 - most - 0.03 - noise
    agreed = ((found.lows > 0) | (found.highs < 0)) == (found.p_values <= 0.05)
    assert agreed.mean() > 0.95
