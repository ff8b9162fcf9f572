"""Figures of a row against float64 arithmetic on the same logits."""

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import log_softmax

from engine.errors import ModelError
from engine.llama.distribution import Distribution, largest

SIZES = (1, 7, 300, 4096, 32000, 151_936)


def rows(size: int) -> dict[str, npt.NDArray[np.float32]]:
    rng = np.random.default_rng(size)
    peaked = rng.normal(size=size)
    peaked[size // 2] = 60
    banned = rng.normal(size=size)
    banned[1:] = np.where(rng.random(size - 1) < 0.5, -np.inf, banned[1:])
    named = {"normal": rng.normal(scale=4, size=size), "peaked": peaked, "banned": banned, "flat": np.zeros(size)}
    return {name: row.astype(np.float32) for name, row in named.items()}


@pytest.mark.parametrize("size", SIZES)
def test_figures_equal_float64(size: int) -> None:
    distribution = Distribution(size)
    for name, row in rows(size).items():
        exact = log_softmax(row.astype(np.float64))
        p = np.exp(exact)
        entropy = -np.sum(p[p > 0] * exact[p > 0])
        figures = distribution.measure(row, largest(row))
        best = int(row.argmax())
        assert float(row[best]) - figures.normaliser == pytest.approx(exact[best], abs=2e-6), name
        assert figures.entropy == pytest.approx(entropy, abs=2e-5), name


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [1, 10, 50, 256, 1000])
def test_top_equals_a_full_sort(size: int, k: int) -> None:
    distribution = Distribution(size)
    for name, row in rows(size).items():
        top = distribution.top(row, k)
        assert top.ids.tolist() == np.argsort(-row, kind="stable")[:k].tolist(), name
        assert top.logits.tolist() == row[top.ids].tolist(), name


def test_rank_counts_ties_at_the_better_place() -> None:
    row = np.array([1, 3, 3, 2], np.float32)
    distribution = Distribution(4)
    assert [distribution.rank(row, token) for token in range(4)] == [4, 1, 1, 3]
    top = distribution.top(row, 4)
    assert [top.rank(float(row[token])) for token in range(4)] == [4, 1, 1, 3]


@pytest.mark.parametrize("wrong", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]])
def test_a_row_that_is_no_distribution_is_refused(wrong: list[float]) -> None:
    with pytest.raises(ModelError, match="NaN or nothing finite"):
        Distribution(2).top(np.array(wrong, np.float32), 1)


@pytest.mark.parametrize("place", [0, 2500, 4095])
def test_nan_is_found_wherever_it_stands(place: int) -> None:
    row = np.zeros(4096, np.float32)
    row[place] = np.nan
    with pytest.raises(ModelError, match="NaN"):
        Distribution(4096).top(row, 10)
