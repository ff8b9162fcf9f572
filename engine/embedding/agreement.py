"""Agreement of vectors with a reference: cosines text by text, and rank correlation of the similarities."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.errors import ConfigError

MOST_RANKED = 1_000
"""Maximum number of texts whose similarities are ranked: half a million pairs, a tenth of a second."""


class Agreement(NamedTuple):
    """Agreement figures. worst_cosine, mean_cosine: between each vector and its reference, 1 for the same direction.

    rank_correlation: Spearman's, between the pairwise similarities of all texts by these vectors and by the reference,
    1 for the same order; over the first 1,000 texts, NaN for fewer than three.
    """

    worst_cosine: float
    mean_cosine: float
    rank_correlation: float


SAME, NOT_COMPARED = Agreement(1.0, 1.0, 1.0), Agreement(math.nan, math.nan, math.nan)


def agreement(vectors: npt.NDArray[np.floating], reference: npt.NDArray[np.floating]) -> Agreement:
    """Compare vectors (n, dim) with a reference (n, any dim); norms do not matter.

    Where the dimensions differ the cosines are NaN, as the vector spaces of two models are unrelated. Raises
    ConfigError where there are no vectors, or the numbers of vectors differ.
    """
    if len(vectors) != len(reference) or not len(vectors):
        raise ConfigError(
            f"{len(vectors):,} vectors cannot be compared with {len(reference):,} of the reference: compute both from "
            "the same texts"
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
    """Return Pearson's correlation of the ranks, ties sharing their mean rank: Spearman's by definition."""
    from scipy.stats import rankdata  # takes 40 MB, which every worker that imports the engine would pay

    if len(ours) < 3:
        return math.nan
    pairs = np.triu_indices(len(ours), 1)
    ranks = [rankdata((rows @ rows.T)[pairs]) for rows in (ours, theirs)]
    with np.errstate(invalid="ignore"):  # with all ranks tied there is no correlation
        return float(np.corrcoef(ranks)[0, 1])
