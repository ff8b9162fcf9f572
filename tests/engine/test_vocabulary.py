"""Vocabulary: what a search finds, in which order, and what no query can break; the text of several tokens."""

from dataclasses import replace

import pytest

from engine.vocabulary import Found, TokenKind, Vocabulary

PIECES = (
    *(b"", b"cat", b" cat", b"cats", b" cathedral", b"concat", b" a cat"),
    *(b"cat", b"\xf0\x9f", b"\xf0\x9f\x90\xb1", b"\n", b"  ", b"7", b"17", b" 7 ", b"<F0>"),
)
BEGIN = "<|begin_of_text|>"
VOCABULARY = Vocabulary(
    PIECES,
    bytes([TokenKind.CONTROL, *[0] * (len(PIECES) - 1)]),
    {0: BEGIN},
    bos=0,
    add_bos=True,
    add_space_prefix=False,
)


@pytest.mark.parametrize(
    ("query", "tokens"),
    [
        ("cat", (1, 2, 7, 3, 4, 5, 6)),
        (" cat", (2, 4, 6)),
        ("Cat", ()),
        ("begin_of", (0,)),
        (BEGIN, (0,)),
        ("7", (7, 12, 14, 13)),
        ("0", (0, 8, 15)),
        ("16", ()),
        ("017", ()),
        ("<F0>", (15, 8)),
        ("<9F>", (8,)),
        ("🐱", (9,)),
        ("\n", (10,)),
        ("  ", (11,)),
        ("", ()),
        ("cat\0", ()),
    ],
)
def test_exact_tokens_come_first_then_beginnings_then_the_rest(query: str, tokens: tuple[int, ...]) -> None:
    assert VOCABULARY.search(query) == Found(tokens, 0)


def test_tokens_beyond_the_limit_are_counted() -> None:
    assert VOCABULARY.search("cat", most=3) == Found((1, 2, 7), 4)
    many = replace(VOCABULARY, pieces=(b"the",) * 1000, kinds=bytes(1000), names={})
    assert many.search("the") == Found(tuple(range(50)), 950)
    assert many.search("999") == Found((999,), 0)
    assert many.search("th", most=1) == Found((0,), 999)


@pytest.mark.parametrize(
    "query", ["9" * 10_000, "٣", "²", "\ud800", "(a+)+$", "[", "\\", "a" * 100_000, "\u202e", "-1"]
)
def test_a_hostile_query_finds_nothing(query: str) -> None:
    assert VOCABULARY.search(query) == Found((), 0)


def test_every_byte_is_found_by_what_is_shown_of_it() -> None:
    vocabulary = replace(VOCABULARY, pieces=tuple(bytes([byte]) for byte in range(256)), kinds=bytes(256), names={})
    for byte in range(128, 256):
        assert vocabulary.search(f"<{byte:02X}>") == Found((byte,), 0)
    assert vocabulary.search("A").tokens[0] == ord("A")


def test_a_part_of_a_vocabulary_is_searched_as_far_as_it_goes() -> None:
    assert VOCABULARY.part([2, 5]).search("cat") == Found((2, 5), 0)


def test_a_text_is_had_only_whole() -> None:
    assert [VOCABULARY.has(text) for text in ("cat", BEGIN, "<F0>")] == [True] * 3
    assert not any(map(VOCABULARY.has, ("", "ca", "Cat", "<9F>")))


def test_a_search_changes_neither_equality_nor_hash() -> None:
    searched = replace(VOCABULARY)
    searched.search("cat")
    assert searched == VOCABULARY
    assert searched.hash == VOCABULARY.hash


def test_several_tokens_are_one_text_with_the_characters_that_they_make_together() -> None:
    split = replace(VOCABULARY, pieces=(*PIECES, b"\x90", b"\xb1"), kinds=bytes(len(PIECES) + 2))
    cat = [8, len(PIECES), len(PIECES) + 1]
    assert split.texts([0, *cat, 2]) == f"{BEGIN}🐱 cat"
    assert split.texts(cat[:2]) == "<F0><9F><90>" and split.texts(cat[1:]) == "<90><B1>"
    assert split.texts([]) == ""


def test_a_name_that_is_no_text_breaks_no_line() -> None:
    named = replace(VOCABULARY, names={0: "\ud800"})
    assert named.texts([0, 1]) == "?cat"
