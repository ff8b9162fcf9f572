"""Step-down max-T by hand, against the sign-flip test, and against its definition."""

from itertools import product

import numpy as np
import pytest

from engine.stats import max_t, sign_flip_p
from engine.stats.max_t import MOST_EXACT


def by_definition(differences: np.ndarray) -> np.ndarray:
    """Return the p-values from all flips of all rounds, one column after the other."""
    given = np.nan_to_num(differences)
    lengths = np.sqrt((given**2).sum(0))
    seen = np.abs(given.sum(0)) / lengths
    flips = np.array([np.abs(np.array(signs) @ given) / lengths for signs in product((1, -1), repeat=len(given))])
    p_values, smallest = np.zeros(len(seen)), 0.0
    for column in np.argsort(-seen):
        rivals = flips[:, seen <= seen[column]].max(axis=1)
        smallest = max(smallest, float((rivals >= seen[column] - 1e-5).mean()))
        p_values[column] = smallest
    return p_values


@pytest.mark.parametrize("seed", range(5))
def test_it_is_what_westfall_and_young_define(seed: int) -> None:
    random = np.random.default_rng(seed)
    differences = random.normal(random.normal(0, 1, 5), 1, (8, 5))
    differences[random.random((8, 5)) < 0.15] = np.nan
    assert max_t(differences) == pytest.approx(by_definition(differences))


@pytest.mark.parametrize("num", [6, 9, MOST_EXACT])
def test_a_single_column_is_the_sign_flip_test(num: int) -> None:
    differences = np.random.default_rng(num).normal(0.4, 1, num)
    assert max_t(differences[:, None])[0] == pytest.approx(sign_flip_p(differences), abs=1e-9)


def test_many_rounds_are_near_all_flips() -> None:
    differences = np.random.default_rng(1).normal(0.45, 1, (MOST_EXACT + 3, 4))
    assert max_t(differences) == pytest.approx(by_definition(differences), abs=0.01)
    assert (max_t(differences) == max_t(differences)).all()


def test_the_scale_of_a_column_does_not_matter() -> None:
    differences = np.random.default_rng(2).normal(0.5, 1, (10, 4))
    assert max_t(differences * [1, 1e-6, 1e6, 30]) == pytest.approx(max_t(differences))


def test_columns_without_a_difference_and_tables_without_columns() -> None:
    assert max_t(np.zeros((8, 2))).tolist() == [1.0, 1.0]
    assert max_t(np.column_stack([np.ones(8), np.zeros(8)])).tolist() == [2 / 256, 1.0]
    assert max_t(np.zeros((8, 0))).shape == (0,)
