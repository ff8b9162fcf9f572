"""Downsampling: few points, with the outline or the quartiles preserved and each part represented by its share."""

import numpy as np
import pytest

from engine.history.downsampling import MOST_POINTS, extremes, ranks

RANDOM = np.random.default_rng(0)


def test_what_is_few_stays_whole_but_for_what_is_not_finite() -> None:
    x, y = [0.0, 1.0, 2.0, 3.0], [1.0, np.nan, 3.0, np.inf]
    assert extremes(x, y).tolist() == ranks(y).tolist() == [0, 2]
    assert extremes([], []).tolist() == ranks([]).tolist() == []


def test_the_outline_of_many_points_is_kept() -> None:
    x, y = np.arange(100_000.0), RANDOM.normal(size=100_000)
    y[54_321] = 50
    rows = extremes(x, y, most=1_000)
    assert len(rows) <= 1_000 and (np.diff(rows) > 0).all() and 54_321 in rows
    fields = np.minimum(x * 500 // x[-1], 499).astype(int)
    for number in (0, 250, 499):
        here = np.flatnonzero(fields == number)
        assert {here[y[here].argmin()], here[y[here].argmax()]} == set(rows[fields[rows] == number].tolist())


def test_the_quartiles_of_many_points_are_kept() -> None:
    y = RANDOM.lognormal(size=200_000)
    rows = ranks(y)
    assert len(rows) == MOST_POINTS
    shares = [0, 0.25, 0.5, 0.75, 1]
    assert np.quantile(y[rows], shares) == pytest.approx(np.quantile(y, shares), rel=1e-3)


def test_a_small_part_stays_whole_beside_a_large_one() -> None:
    parts = np.where(np.arange(50_000) % 500 == 7, 3, 0)
    x, y = np.arange(50_000), RANDOM.normal(size=50_000)
    for rows in (extremes(x, y, parts, 1_000), ranks(y, parts, 1_000)):
        assert len(rows) <= 1_000
        assert (parts[rows] == 3).sum() == (parts == 3).sum() == 100
        assert 400 <= (parts[rows] == 0).sum() <= 500


def test_equal_places_and_equal_values_are_no_trouble() -> None:
    same = np.ones(5_000)
    assert len(ranks(same, most=100)) == 100
    assert 1 <= len(extremes(same, same, most=100)) <= 2
