"""Log-probabilities as clients read them, for every kind of step."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.openai.logprobs import LEAST, TokenTexts, content, legacy, shown
from engine.step_parts import INSPECTED, RECORD
from engine.steps import StepTable
from engine.vocabulary import Vocabulary

PIECES = (b"a", b"b", b"a", b"\xf0", b"\xf0", b"", b"c", b"c")
VOCABULARY = Vocabulary(PIECES, bytes(len(PIECES)), {5: "<end>"}, None, add_bos=False, add_space_prefix=False)
TEXTS = ("a", "b", "a", "bytes:\\xf0", "bytes:\\xf0", "<end>", "c", "c")
K = 6
LOGPROBS = st.floats(-50, 0, width=32)


@st.composite
def tables(draw: st.DrawFn) -> tuple[StepTable, list[tuple[int, float]]]:
    """A table of one step, with its candidates: few or many, some impossible, the chosen token among them or not."""
    ids = draw(st.permutations(range(len(PIECES))))[: draw(st.integers(1, K))]
    logprobs = sorted(draw(st.lists(LOGPROBS, min_size=len(ids), max_size=len(ids))), reverse=True)
    first_impossible = draw(st.integers(1, K))
    logprobs = [one if number < first_impossible else -math.inf for number, one in enumerate(logprobs)]
    chosen = draw(st.integers(0, len(PIECES) - 1))
    own = dict(zip(ids, logprobs, strict=True)).get(chosen, logprobs[-1])
    record = np.zeros(1, RECORD)
    record["id"], record["logprob"], record["flags"] = chosen, own, INSPECTED
    padded = np.full((1, K), -1, np.int32), np.zeros((1, K), np.float32)
    padded[0][0, : len(ids)], padded[1][0, : len(ids)] = ids, logprobs
    table = StepTable(VOCABULARY, K)
    table.append(record, *padded, np.zeros((1, K), np.float32))
    return table, list(zip(ids, logprobs, strict=True))


@given(tables(), st.integers(0, K))
def test_each_text_has_the_figure_of_its_most_probable_candidate(
    drawn: tuple[StepTable, list[tuple[int, float]]], num_top: int
) -> None:
    table, candidates = drawn
    chosen, own = int(table.records["id"][0]), float(table.records["logprob"][0])
    best = candidates[:num_top]
    listed = best if any(token == chosen for token, _ in best) else [*best, (chosen, own)]
    expected: dict[str, float] = {}
    for token, logprob in listed:
        expected[TEXTS[token]] = max(logprob, expected.get(TEXTS[token], LEAST))
    texts = TokenTexts(VOCABULARY)
    given = legacy(texts, shown(table, num_top))
    assert given["tokens"] == [TEXTS[chosen]]
    assert given["top_logprobs"] == [expected]
    assert list(given["top_logprobs"][0]) == list(expected)
    (entry,) = content(texts, shown(table, num_top), num_top)
    assert entry["logprob"] == given["token_logprobs"][0] == max(own, LEAST)
    assert [(one["token"], one["logprob"]) for one in entry["top_logprobs"]] == [
        (TEXTS[token], max(logprob, LEAST)) for token, logprob in listed[:num_top]
    ]


@pytest.mark.parametrize(("flags", "logprob"), [(0, -1.0), (INSPECTED, math.nan)])
def test_a_step_without_a_figure_has_no_candidates(flags: int, logprob: float) -> None:
    record = np.zeros(1, RECORD)
    record["logprob"], record["flags"] = logprob, flags
    nothing = np.zeros((1, K), np.float32)
    table = StepTable(VOCABULARY, K)
    table.append(record, nothing.astype(np.int32), nothing, nothing)
    (one,) = shown(table, K)
    assert one.logprob is None and legacy(TokenTexts(VOCABULARY), [one])["top_logprobs"] == [None]
