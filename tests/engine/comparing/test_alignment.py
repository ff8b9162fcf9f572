"""Texts and tokens side by side."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.comparing.alignment import (
    MAX_LINES,
    MAX_WORDS,
    Segment,
    common_prefix,
    diff,
    fold,
    parting,
    parting_sentence,
)
from engine.step_parts import RECORD
from engine.steps import StepTable
from engine.vocabulary import TokenKind, Vocabulary

WORDS = ("</s>", "Once", " upon", " a", " time", " hill")
VOCABULARY = Vocabulary(
    tuple(word.encode() if word != "</s>" else b"" for word in WORDS),
    bytes([TokenKind.CONTROL | TokenKind.END, 0, 0, 0, 0, 0]), {0: "</s>"}, None, False, False,
)  # fmt: skip
OTHER = Vocabulary((b"Once upon", b" a", b" tune"), bytes(3), {}, None, False, False)


def table(*ids: int, vocabulary: Vocabulary = VOCABULARY) -> StepTable:
    records = np.zeros(len(ids), RECORD)
    records["id"] = ids
    nothing = np.zeros((len(ids), 0), np.float32)
    return StepTable.of(vocabulary, records, nothing.astype(np.int32), nothing, nothing, is_prompt=False)


@pytest.mark.parametrize(
    ("sequences", "length"),
    [([], 0), ([[1, 2]], 2), ([[1, 2], [1, 3]], 1), ([[1], [1, 2]], 1), ([[], [1]], 0), ([[1, 2], [1, 2], [2]], 0)],
)
def test_common_prefix(sequences: list[list[int]], length: int) -> None:
    assert common_prefix(sequences) == length


def test_diff_names_what_only_one_has() -> None:
    assert diff("the old king said", "the king said so") == [
        Segment("same", "the"), Segment("added", " old"), Segment("same", " king said"), Segment("missing", " so"),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "a", "a  b\n\n c\t", "\n", "x " * (MAX_WORDS + 1)])
@pytest.mark.parametrize("reference", ["", "a b", "quite\nother\nlines\n" * 2000])
def test_a_diff_without_what_is_missing_is_the_text_and_without_what_is_added_the_reference(
    text: str, reference: str
) -> None:
    segments = diff(text, reference)
    assert "".join(part.text for part in segments if part.kind != "missing") == text
    assert "".join(part.text for part in segments if part.kind != "added") == reference


LINES = st.lists(st.sampled_from(["x\n", "y\n", "x y\n", "\n", "  \n"]), max_size=40).map("".join)


@given(LINES, LINES)
def test_a_diff_is_as_short_as_can_be(text: str, reference: str) -> None:
    segments = diff(text, reference)
    assert "".join(part.text for part in segments if part.kind != "missing") == text
    assert "".join(part.text for part in segments if part.kind != "added") == reference
    same = "".join(part.text for part in segments if part.kind == "same")
    assert len(words(same)) == common_length(words(text), words(reference))


def words(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+", text)


def common_length(ours: list[str], theirs: list[str]) -> int:
    """Length of the longest common subsequence, by the textbook's table."""
    row = [0] * (len(theirs) + 1)
    for word in ours:
        before = row[:]
        for place, other in enumerate(theirs):
            row[place + 1] = before[place] + 1 if word == other else max(before[place + 1], row[place])
    return row[-1]


@pytest.mark.parametrize("num_lines", [MAX_LINES, 100_000])
@pytest.mark.parametrize("line", ["x\n", "{number}\n"])
def test_texts_of_many_lines_are_compared_at_once(num_lines: int, line: str) -> None:
    text = "begin\n" + "".join(line.format(number=number) for number in range(num_lines)) + "end\n"
    reference = "begin\n" + "".join(line.format(number=number) for number in range(num_lines, 0, -1)) + "other\nend\n"
    segments = diff(text, reference)
    assert segments[0].kind == segments[-1].kind == "same"
    assert "".join(part.text for part in segments if part.kind != "missing") == text


def test_fold_counts_equal_texts_most_frequent_first() -> None:
    folds = fold(["a", "b", "c", "b", "b", "c"])
    assert [(one.text, one.positions) for one in folds] == [("b", (1, 3, 4)), ("c", (2, 5)), ("a", (0,))]
    assert fold([]) == []


def test_where_variants_part_is_shown_with_how_each_goes_on() -> None:
    tables = [table(1, 2, 3, 4), table(1, 2, 3, 5), table(1, 2, 3)]
    assert parting(tables) == 3
    sentence = parting_sentence(["cold", "hot", "short"], tables)
    assert sentence == (
        "The first 3 tokens are the same; then cold continues with “ time”; hot continues with “ hill”; "
        "short ends there."
    )


def test_arms_that_go_the_same_way_are_named_together() -> None:
    tables = [table(1, 2), table(1, 3), table(1, 3), table(1, 4), table(1, 5)]
    sentence = parting_sentence(["a", "b", "c", "d", "e"], tables)
    assert sentence.startswith("Only the first token is the same; then b, c continue with “ a”;")
    assert sentence.endswith("1 more continue differently.")


def test_all_alike_and_nothing_alike() -> None:
    assert parting_sentence(["a", "b"], [table(1, 2), table(1, 2)]) == "All 2 variants gave the same 2 tokens."
    assert parting_sentence(["a", "b"], [table(1), table(0)]).startswith("They diverge at the first token: a continues")
    assert "“</s>”" in parting_sentence(["a", "b"], [table(1), table(0)])
    assert parting_sentence(["a"], [table(1)]) == ""


def test_other_tokenizers_are_only_compared_by_text() -> None:
    tables = [table(1, 2, 3, 4), table(0, 1, 2, vocabulary=OTHER)]
    assert parting(tables) is None
    assert "the first 13 characters are the same" in parting_sentence(["a", "b"], tables)
