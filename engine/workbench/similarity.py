"""How alike vectors of length 1 are, and where they lie beside each other. Pure; numbers in, numbers out."""

from typing import NamedTuple

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from engine.results import Floats


class Projection(NamedTuple):
    """Points (n, 2) along the two directions in which vectors differ most; shares (2,): of the variance in each.

    shares are 0 where all vectors are the same.
    """

    points: Floats
    shares: Floats


class Pair(NamedTuple):
    """Numbers of two texts, from 0, and the cosine between them."""

    first: int
    second: int
    cosine: float


def cosines(vectors: Floats) -> Floats:
    """Each vector with each: (n, n), 1 on the diagonal, from -1 to 1."""
    found: Floats = np.clip(vectors @ vectors.T, -1.0, 1.0)
    np.fill_diagonal(found, 1.0)
    return found


def nearest(vectors: Floats, vector: Floats, count: int, *, without: int | None = None) -> list[tuple[int, float]]:
    """Numbers of the vectors most like `vector`, with their cosines, the nearest first; `without` one of them."""
    alike = np.clip(vectors @ vector, -1.0, 1.0)
    order = [number for number in np.argsort(-alike, kind="stable").tolist() if number != without]
    return [(number, float(alike[number])) for number in order[:count]]


def most_alike(alike: Floats) -> Pair:
    """The two, of two or more, with the largest cosine; of several the first."""
    above = np.where(np.triu(np.ones_like(alike), 1) > 0, alike, -np.inf)
    first, second = np.unravel_index(int(np.argmax(above)), above.shape)
    return Pair(int(first), int(second), float(above[first, second]))


def like_beside_like(alike: Floats) -> list[int]:
    """An order in which texts that are alike stand together: leaves of average linkage over 1 - cosine."""
    if len(alike) < 3:
        return list(range(len(alike)))
    distances = squareform(1.0 - alike.astype(np.float64), checks=False)
    order: list[int] = leaves_list(linkage(np.maximum(distances, 0.0), "average", optimal_ordering=True)).tolist()
    return order


def project(vectors: Floats) -> Projection:
    """Principal components of one or more vectors, by singular values.

    The sign, which is free, makes the point farthest out in each direction positive.
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
