"""Batches and chunks: every text once, within the budget, with little padding."""

import re
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.embedding.backends import Tokens
from engine.embedding.batching import CHARACTERS_PER_TOKEN, batches, beginnings, chunks

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


def runs(given: Sequence[str], longest: int, max_tokens: int) -> Tokens:
    """Return one token for each run of up to `longest` equal characters."""
    found = [re.findall(rf"a{{1,{longest}}}|b{{1,{longest}}}|é| +", text) for text in given]
    rows = [[len(run) << 16 | ord(run[0]) for run in text] for text in found]
    return Tokens([row[:max_tokens] for row in rows], [at for at, row in enumerate(rows) if len(row) > max_tokens])


@given(st.lists(st.text("ab ", max_size=400), max_size=5), st.integers(1, 8), st.integers(1, 40))
def test_beginnings_are_those_of_the_whole_texts(texts: list[str], max_tokens: int, longest: int) -> None:
    found = beginnings(lambda given: runs(given, longest, max_tokens), texts, max_tokens)
    assert found == runs(texts, longest, max_tokens)


@given(st.integers(1, 100), st.integers(1, 3))
def test_no_more_of_a_long_text_is_tokenised_than_counts(max_tokens: int, num_texts: int) -> None:
    sizes: list[int] = []

    def tokenise(given: Sequence[str]) -> Tokens:
        sizes.extend(map(len, given))
        return runs(given, 1, max_tokens)

    beginnings(tokenise, ["é" * 10_000] * num_texts, max_tokens)
    assert sizes == [CHARACTERS_PER_TOKEN * max_tokens] * num_texts


def test_texts_of_one_length_are_not_padded() -> None:
    assert batches([7] * 6, 21) == [[0, 1, 2], [3, 4, 5]]


def test_empty_texts_fill_a_batch_too() -> None:
    assert [len(batch) for batch in batches([0] * 10, 4)] == [4, 4, 2]
