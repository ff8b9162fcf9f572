"""Similarity of vectors: cosines, neighbours, an order, a map."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine.step_parts import Floats
from engine.workbench.similarity import cosines, like_beside_like, most_alike, nearest, project


def unit(rows: npt.NDArray[Any]) -> Floats:
    made: Floats = (rows / np.linalg.norm(rows, axis=1)[:, None]).astype(np.float32)
    return made


@pytest.fixture(scope="module")
def vectors() -> Floats:
    """Two kinds of texts, mixed: even ones point one way, odd ones another."""
    random = np.random.default_rng(1)
    base = np.eye(8, dtype=np.float32)[[0, 3] * 10]
    return unit(base + random.normal(0, 0.1, (20, 8)).astype(np.float32))


def test_cosines_are_one_with_themselves_and_the_product_of_unit_vectors(vectors: Floats) -> None:
    alike = cosines(vectors)
    assert (np.diag(alike) == 1).all()
    assert alike[3, 5] == pytest.approx(float(vectors[3] @ vectors[5]), abs=1e-6)
    assert alike.max() <= 1 and alike.min() >= -1


def test_the_nearest_come_first_without_the_text_itself(vectors: Floats) -> None:
    found = nearest(vectors, vectors[4], 5, without=4)
    cosine = [value for _number, value in found]
    assert cosine == sorted(cosine, reverse=True)
    assert all(number % 2 == 0 and number != 4 for number, _value in found)
    ((number, cosine_of_itself),) = nearest(vectors, vectors[4], 1)
    assert number == 4 and cosine_of_itself == pytest.approx(1)


def test_the_most_alike_pair_is_found_off_the_diagonal() -> None:
    rows = unit(np.asarray([[1, 0, 0], [0, 1, 0], [0, 1, 0.1]]))
    assert most_alike(cosines(rows))[:2] == (1, 2)


def test_like_stands_beside_like(vectors: Floats) -> None:
    order = like_beside_like(cosines(vectors))
    assert sorted(order) == list(range(20))
    kinds = [number % 2 for number in order]
    assert kinds in (sorted(kinds), sorted(kinds, reverse=True))
    assert like_beside_like(cosines(vectors[:2])) == [0, 1]


def test_the_map_parts_what_differs_and_keeps_distances_in_a_plane() -> None:
    plane = np.random.default_rng(2).normal(size=(30, 2))
    turned = plane @ np.linalg.qr(np.random.default_rng(3).normal(size=(6, 6)))[0][:2]
    found = project(turned.astype(np.float32))
    assert found.shares.sum() == pytest.approx(1, abs=1e-5)
    assert np.linalg.norm(found.points[0] - found.points[1]) == pytest.approx(
        np.linalg.norm(plane[0] - plane[1]), rel=1e-4
    )


def test_texts_that_are_all_the_same_lie_on_one_point() -> None:
    same = unit(np.ones((4, 8)))
    found = project(same)
    assert (found.points == 0).all() and (found.shares == 0).all()
    assert like_beside_like(cosines(same)) is not None
    assert project(same[:1]).points.shape == (1, 2)
