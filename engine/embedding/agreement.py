"""How near vectors are to those of a reference, text by text and as an order of what is like what."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.errors import ConfigError

MOST_RANKED = 1_000
"""Texts whose similarities are ranked: half a million pairs, a tenth of a second."""


class Agreement(NamedTuple):
    """worst_cosine, mean_cosine: between each vector and its reference, 1 for the same direction.

    rank_correlation: Spearman's, between the similarities of all pairs of texts as these vectors and as the reference
    have them, 1 for the same order; of the first 1,000 texts, NaN for fewer than three.
    """

    worst_cosine: float
    mean_cosine: float
    rank_correlation: float


SAME, NOT_COMPARED = Agreement(1.0, 1.0, 1.0), Agreement(math.nan, math.nan, math.nan)


def agreement(vectors: npt.NDArray[np.floating], reference: npt.NDArray[np.floating]) -> Agreement:
    """Compare vectors (n, dim) with a reference (n, any dim); lengths do not matter.

    Where the dimensions differ there are no cosines (NaN), as spaces of two models have nothing to do with each other.
    Raises ConfigError for no vectors or another number of them.
    """
    if len(vectors) != len(reference) or not len(vectors):
        raise ConfigError(
            f"{len(vectors):,} vectors and {len(reference):,} of the reference cannot be compared: give both of the "
            "same texts"
        )
    ours, theirs = _unit(vectors), _unit(reference)
    ranked = _rank_correlation(ours[:MOST_RANKED], theirs[:MOST_RANKED])
    if ours.shape != theirs.shape:
        return Agreement(math.nan, math.nan, ranked)
    cosines = (ours * theirs).sum(axis=1)
    return Agreement(float(cosines.min()), float(cosines.mean()), ranked)


def _unit(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    rows = np.asarray(vectors, np.float64)
    lengths: npt.NDArray[np.float64] = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(lengths, np.finfo(np.float64).tiny)


def _rank_correlation(ours: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64]) -> float:
    """Pearson's correlation of the ranks, ties sharing their mean: Spearman's by definition."""
    from scipy.stats import rankdata  # 40 MB, and every worker that imports the engine would have them

    if len(ours) < 3:
        return math.nan
    pairs = np.triu_indices(len(ours), 1)
    ranks = [rankdata((rows @ rows.T)[pairs]) for rows in (ours, theirs)]
    with np.errstate(invalid="ignore"):  # no order at all has no correlation
        return float(np.corrcoef(ranks)[0, 1])
