"""Texts of an embedding sample."""

import numpy as np

from engine.bench.measurement.texts import Texts
from engine.bench.planning.plan import TextWorkload


def test_the_same_seed_gives_the_same_texts_and_another_seed_others() -> None:
    workload = TextWorkload(num_texts=8)
    first, again, other = (Texts(workload, seed).take() for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 8
    assert Texts(workload, None).take() != Texts(workload, None).take()


def test_lengths_are_as_wanted_on_average_and_spread_as_asked() -> None:
    lengths = np.array([len(text.split()) for text in Texts(TextWorkload(num_words=40, num_texts=20_000), 0).take()])
    assert 38 < lengths.mean() < 42
    assert 0.7 < np.log(lengths).std() < 0.85
    assert lengths.min() >= 1
    alike = [len(text.split()) for text in Texts(TextWorkload(num_words=7, spread=0), 0).take()]
    assert set(alike) == {7}


def test_own_texts_come_one_after_the_other_and_begin_anew() -> None:
    texts = Texts(TextWorkload(texts=("a", "b", "c"), num_texts=5), 3)
    taken = texts.take() + texts.take(1)
    assert sorted(taken) == ["a", "a", "b", "b", "c", "c"]
    assert taken[:3] == taken[3:]
