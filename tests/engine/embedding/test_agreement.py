"""Agreement of two sets of vectors, on vectors with a known answer."""

import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from engine.embedding.agreement import MOST_RANKED, SAME, agreement
from engine.errors import ConfigError

RANDOM = np.random.default_rng(0).normal(size=(40, 8))


def test_the_same_vectors_agree_whatever_their_length() -> None:
    found = agreement(RANDOM * np.arange(1, 41)[:, None], RANDOM)
    assert found == pytest.approx(SAME)


def test_worst_and_mean_are_those_of_the_cosines() -> None:
    reference = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    turned = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, -1.0]])
    found = agreement(turned, reference)
    assert found.worst_cosine == pytest.approx(0)
    assert found.mean_cosine == pytest.approx((1 + math.sqrt(0.5)) / 3)


def test_the_rank_correlation_is_spearmans() -> None:
    near = RANDOM + 0.3 * np.random.default_rng(1).normal(size=RANDOM.shape)
    pairs = np.triu_indices(len(RANDOM), 1)
    units = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (near, RANDOM)]
    expected = spearmanr(*((rows @ rows.T)[pairs] for rows in units)).statistic
    assert agreement(near, RANDOM).rank_correlation == pytest.approx(expected)
    assert 0.5 < expected < 1


def test_another_space_has_an_order_but_no_cosines() -> None:
    turned = np.concatenate([RANDOM, np.zeros((40, 2))], axis=1)
    found = agreement(turned, RANDOM)
    assert math.isnan(found.worst_cosine) and math.isnan(found.mean_cosine)
    assert found.rank_correlation == pytest.approx(1)


def test_of_many_texts_only_the_first_are_ranked() -> None:
    reference = np.random.default_rng(2).normal(size=(MOST_RANKED + 5, 4))
    other = reference.copy()
    other[MOST_RANKED:] *= -1
    found = agreement(other, reference)
    assert found.rank_correlation == pytest.approx(1)
    assert found.worst_cosine == pytest.approx(-1)


def test_two_texts_have_no_order() -> None:
    assert math.isnan(agreement(RANDOM[:2], RANDOM[:2]).rank_correlation)


def test_a_vector_of_zeros_is_like_nothing() -> None:
    assert agreement(np.zeros((3, 2)), np.ones((3, 2))).worst_cosine == 0


@pytest.mark.parametrize("num", [0, 39])
def test_other_numbers_of_vectors_are_refused(num: int) -> None:
    with pytest.raises(ConfigError, match="same"):
        agreement(RANDOM[:num], RANDOM[:0] if num == 0 else RANDOM)
