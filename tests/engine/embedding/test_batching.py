"""Batches and chunks: every text once, budgets kept, little padding."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.embedding.batching import batches, chunks

SIZES = st.lists(st.integers(0, 600), max_size=80)


@given(SIZES, st.integers(1, 2048))
def test_every_text_is_in_one_batch_and_the_budget_holds(lengths: list[int], budget: int) -> None:
    found = batches(lengths, budget)
    assert sorted(place for batch in found for place in batch) == list(range(len(lengths)))
    for batch in found:
        padded = max(lengths[place] for place in batch) * len(batch)
        assert padded <= budget or len(batch) == 1
        assert lengths[batch[0]] == max(lengths[place] for place in batch)


@given(SIZES, st.integers(1, 2048))
def test_no_batch_would_have_taken_the_first_text_of_the_next(lengths: list[int], budget: int) -> None:
    found = batches(lengths, budget)
    for one, following in pairwise(found):
        assert lengths[following[0]] <= lengths[one[-1]]
        assert max(lengths[one[0]], 1) * (len(one) + 1) > budget


@given(SIZES, st.integers(1, 2048))
def test_every_text_is_in_one_chunk_and_the_longest_come_first(sizes: list[int], most: int) -> None:
    found = chunks(sizes, most)
    places = [place for chunk in found for place in chunk]
    assert sorted(places) == list(range(len(sizes)))
    assert [sizes[place] for place in places] == sorted(sizes, reverse=True)
    assert all(sum(sizes[place] for place in chunk) <= most or len(chunk) == 1 for chunk in found)


def test_texts_of_one_length_are_not_padded() -> None:
    assert batches([7] * 6, 21) == [[0, 1, 2], [3, 4, 5]]


def test_empty_texts_fill_a_batch_too() -> None:
    assert [len(batch) for batch in batches([0] * 10, 4)] == [4, 4, 2]
