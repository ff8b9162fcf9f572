"""Steps as text: bytes that are no whole characters, whatever the tokens are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.results import StepTable, step_dtype
from engine.vocabulary import TextDecoder, Vocabulary

PIECES = (b"\xff", b"a", b" ", b"\xe4\xbd", b"\xa0", b"\xf0", b"\x9f\x90", b"\x88", "\ufffd".encode(), b"", b" once")


def vocabulary(add_space_prefix: bool) -> Vocabulary:
    return Vocabulary(PIECES, bytes(len(PIECES)), {}, None, False, add_space_prefix)


def table_of(ids: list[int], *, is_prompt: bool, add_space_prefix: bool) -> StepTable:
    table = StepTable(vocabulary(add_space_prefix), 0, is_prompt=is_prompt)
    rows = np.zeros(len(ids), step_dtype(0))
    rows["record"]["id"] = ids
    table.append_bytes(rows.tobytes())
    return table


@given(st.lists(st.integers(0, len(PIECES) - 1), max_size=12), st.booleans(), st.booleans(), st.integers(0, 12))
def test_the_text_is_that_of_the_steps_and_what_is_left(
    ids: list[int], is_prompt: bool, add_space_prefix: bool, read: int
) -> None:
    table = table_of(ids, is_prompt=is_prompt, add_space_prefix=add_space_prefix)
    for index in range(min(read, len(ids))):
        table.text_of(index)
    decoder = TextDecoder(vocabulary(add_space_prefix), strip_first_space=is_prompt)
    assert table.text == "".join(map(decoder.step, ids)) + decoder.finish()


@pytest.mark.parametrize(("ids", "text"), [([0, 1], "\ufffda"), ([3], "\ufffd"), ([3, 4], "你"), ([8], "\ufffd")])
def test_an_unfinished_character_reads_as_one_replacement(ids: list[int], text: str) -> None:
    assert table_of(ids, is_prompt=False, add_space_prefix=True).text == text
