"""Similarity of vectors of length 1: cosines, nearest neighbours, ordering and projection. Pure functions."""

from typing import NamedTuple

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from engine.step_parts import Floats


class Projection(NamedTuple):
    """Points (n, 2) along the two directions of largest variance; shares (2,): the share of the variance in each.

    shares are 0 where all vectors are equal.
    """

    points: Floats
    shares: Floats


class Pair(NamedTuple):
    """Indices of two texts, from 0, and the cosine between them."""

    first: int
    second: int
    cosine: float


def cosines(vectors: Floats) -> Floats:
    """Return the cosines of all pairs of vectors: (n, n), from -1 to 1, 1 on the diagonal."""
    found: Floats = np.clip(vectors @ vectors.T, -1.0, 1.0)
    np.fill_diagonal(found, 1.0)
    return found


def nearest(vectors: Floats, vector: Floats, count: int, *, without: int | None = None) -> list[tuple[int, float]]:
    """Return the indices and cosines of the vectors nearest to `vector`, nearest first; `without` is excluded."""
    alike = np.clip(vectors @ vector, -1.0, 1.0)
    order = [number for number in np.argsort(-alike, kind="stable").tolist() if number != without]
    return [(number, float(alike[number])) for number in order[:count]]


def most_alike(alike: Floats) -> Pair:
    """Return the pair with the largest cosine, the first of equals, from the cosines of two or more texts."""
    above = np.where(np.triu(np.ones_like(alike), 1) > 0, alike, -np.inf)
    first, second = np.unravel_index(int(np.argmax(above)), above.shape)
    return Pair(int(first), int(second), float(above[first, second]))


def like_beside_like(alike: Floats) -> list[int]:
    """Return an order that places similar texts next to each other: leaves of average linkage over 1 - cosine."""
    if len(alike) < 3:
        return list(range(len(alike)))
    distances = squareform(1.0 - alike.astype(np.float64), checks=False)
    order: list[int] = leaves_list(linkage(np.maximum(distances, 0.0), "average", optimal_ordering=True)).tolist()
    return order


def project(vectors: Floats) -> Projection:
    """Project one or more vectors onto their first two principal components, by singular value decomposition.

    The sign, which is arbitrary, is chosen so that the point farthest out in each direction is positive.
    """
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    left, values, _right = np.linalg.svd(centred, full_matrices=False)
    total = float((values**2).sum())
    points, shares = np.zeros((len(vectors), 2)), np.zeros(2)
    num = min(2, len(values))
    if total > 1e-12 * len(vectors):
        points[:, :num], shares[:num] = left[:, :num] * values[:num], values[:num] ** 2 / total
    ends = points[np.argmax(np.abs(points), axis=0), [0, 1]]
    return Projection((points * np.where(ends < 0, -1.0, 1.0)).astype(np.float32), shares.astype(np.float32))
