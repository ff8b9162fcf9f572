"""Watched words: which token sequences a typed word stands for, with the vocabulary of the model that ships."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.models.synthetic import write_synthetic
from engine.pool.pool import Pool
from engine.specs import MAX_WATCHED_IDS
from engine.watched_words import MAX_WORD_CHARACTERS, MAX_WRITINGS, Word, read_word, single_tokens


def texts(pool: Pool, word: Word) -> list[bytes]:
    return [pool.vocabulary.join(variant.ids) for variant in word.watched]


@pytest.mark.parametrize(
    ("typed", "watched"),
    [
        ("Yes", [b"Yes", b" Yes"]),
        (" Yes", [b" Yes"]),
        ('"Yes"', [b"Yes"]),
        ("king|queen", [b"king", b" king", b" queen"]),
        (" king | queen ", [b" king", b"queen ", b" queen "]),
        ('"king"|" king"|king', [b"king", b" king"]),
        ("the|the king", [b"the", b" the"]),
        ("\\n", [b"\n"]),
        ('"a\\"b"', [b'a"b']),
        ("\\||\\\\", [b"|", b"\\"]),
        ("日", ["日".encode(), " 日".encode()]),
        ("\x00", [b"\x00"]),
        ("a\u202eb", ["a\u202eb".encode(), " a\u202eb".encode()]),
    ],
)
def test_a_typed_word_stands_for_its_writings(pool: Pool, typed: str, watched: list[bytes]) -> None:
    word = read_word(pool, typed)
    assert sorted(texts(pool, word)) == sorted(watched)
    assert word.typed == typed
    assert word.passes == sum(len(variant.ids) - 1 for variant in word.watched)
    assert {*word.single_ids} == {variant.ids[0] for variant in word.watched if len(variant.ids) == 1}


def test_what_would_take_passes_is_offered_where_a_single_token_says_the_same(pool: Pool) -> None:
    word = read_word(pool, "queen")
    assert texts(pool, word) == [b" queen"] and word.passes == 0
    assert [pool.vocabulary.join(variant.ids) for variant in word.offered] == [b"queen"]
    both = read_word(pool, "|".join(variant.typed for variant in (*word.watched, *word.offered)))
    assert sorted(texts(pool, both)) == [b" queen", b"queen"] and both.offered == () and both.passes == 1


def test_tokens_are_named_by_id_and_control_tokens_by_name(pool: Pool) -> None:
    end = pool.vocabulary.end_tokens[0]
    assert read_word(pool, pool.vocabulary.names[end]).watched[0].ids == (end,)
    assert read_word(pool, "#300|#0301").single_ids == (300, 301)
    assert texts(pool, read_word(pool, '"#300"')) == [b"#300"]
    assert pool.vocabulary.join(read_word(pool, f'"{pool.vocabulary.names[end]}"').watched[0].ids) != b""


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(min_size=1, max_size=12))
def test_what_is_offered_to_type_gives_the_same_tokens(pool: Pool, text: str) -> None:
    """Each variant of any text can be typed again by itself, and writes just that text."""
    try:
        word = read_word(pool, text)
    except ConfigError:
        return
    for variant in (*word.watched, *word.offered):
        assert [one.ids for one in read_word(pool, variant.typed).watched] == [variant.ids]


def test_with_another_tokenizer_too(tmp_path: Path) -> None:
    """One that puts a space before each text."""
    path = tmp_path / "tiny.gguf"
    write_synthetic("tiny", path, "Q8_0")
    with Pool(path, parallel=1, n_ctx=64) as tiny:
        assert tiny.vocabulary.add_space_prefix
        assert texts(tiny, read_word(tiny, "ba")) == [b"ba", b" ba"]
        assert texts(tiny, read_word(tiny, " ba")) == [b" ba"]
        assert texts(tiny, read_word(tiny, '"ba"')) == [b"ba"]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("", "is empty"),
        ('""', "is empty"),
        ("a|", "is empty"),
        ("|", "is empty"),
        ("a| |b", "is empty"),
        ('"a', "quote is not closed"),
        ('"a" b', "between two writings"),
        ("a\\", "between two writings"),
        ("\\q", "means nothing here"),
        ("#4096", "tokens end at #4,095"),
        ("#9999999999", "tokens end at"),
        ("x" * 10_000, f"10,000 characters; at most {MAX_WORD_CHARACTERS}"),
        ("x" * MAX_WORD_CHARACTERS, f"tokens; at most {MAX_WATCHED_IDS} are allowed"),
        ("|".join("a" * (MAX_WRITINGS + 1)), f"at most {MAX_WRITINGS} are allowed"),
        ("\ud800", "surrogate"),
    ],
)
def test_what_cannot_be_watched_is_refused(pool: Pool, typed: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_word(pool, typed)


def test_only_single_tokens_are_watched_while_text_is_generated(pool: Pool) -> None:
    assert single_tokens(pool, "queen") == (1798,)
    with pytest.raises(ConfigError, match='"Lily" has 2 tokens'):
        single_tokens(pool, "Lily")
