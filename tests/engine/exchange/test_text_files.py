"""Text files: how they are read, and what is refused because its content does not match its name."""

import json

import pytest

from engine.errors import ConfigError
from engine.exchange.text_files import MOST_BYTES, read_texts, shipped_texts


def test_the_shipped_sentences_have_groups_and_several_languages() -> None:
    found = shipped_texts()
    assert len(found.texts) == len(set(found.texts)) == len(found.groups) >= 40
    assert len(set(found.groups)) == 6
    assert any(text.isascii() for text in found.texts) and any("\u0400" <= c <= "\u04ff" for c in "".join(found.texts))


def test_the_shipped_sentences_of_one_language_are_a_part_of_all() -> None:
    english, all_texts = shipped_texts("English"), shipped_texts()
    assert all(map(str.isascii, english.texts)) and set(english.texts) < set(all_texts.texts)
    assert set(english.groups) == set(all_texts.groups)
    with pytest.raises(ConfigError, match="contains no text"):
        shipped_texts("Klingon")


def test_plain_lines_are_texts_without_blank_ones() -> None:
    found = read_texts("notes.txt", "\ufefffirst\r\n\r\n  second  \n".encode())
    assert found.texts == ("first", "second")
    assert found.columns == ()


def test_a_table_gives_the_column_with_the_known_name_or_most_text() -> None:
    data = b'id;Text;label\n1;one, two;a\n\n2;"three\nlines";b\n3;;a\n'
    found = read_texts("t.csv", data)
    assert found.texts == ("one, two", "three\nlines", "")
    assert found.groups == ("a", "b", "a")
    assert found.column == "Text"
    assert read_texts("t.csv", data, column="id").texts == ("1", "2", "3")
    assert read_texts("t.tsv", b"key\tsaid\nx\tmany words here\n").column == "said"


def test_json_lines_are_objects_or_texts() -> None:
    rows = [{"n": 1, "prompt": "Why?", "topic": "sky"}, {"n": 2, "prompt": "How?", "topic": 7}]
    found = read_texts("p.jsonl", "\n".join(map(json.dumps, rows)).encode())
    assert found.texts == ("Why?", "How?")
    assert found.groups == ("sky", "7")
    assert read_texts("p.jsonl", b'"a"\n"b\\u2028c"\n').texts == ("a", "b\u2028c")


def test_more_than_the_bound_is_left_out_and_counted() -> None:
    found = read_texts("a.csv", b"text,group\n" + b"x,y\n" * 10, most=4)
    assert len(found.texts) == len(found.groups) == 4
    assert found.num_left_out == 6


def test_a_text_of_a_million_characters_is_one_text() -> None:
    (text,) = read_texts("long.csv", b"text\n" + b"word " * 200_000 + b"\n").texts
    assert len(text) == 1_000_000


def test_text_in_utf_16_is_read() -> None:
    assert read_texts("w.txt", "schön\ngut".encode("utf-16")).texts == ("schön", "gut")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", b"PK\x03\x04rest", "ZIP archive"),
        ("a.txt", b"\x89PNG\r\n\x1a\n", "image"),
        ("a.jsonl", b"GGUF\x03\0\0\0", "model"),
        ("a.txt", b"abc\0def", "binary"),
        ("a.txt", b"caf\xe9 au lait", "byte 3"),
        ("a.csv", b'{"text": "no table"}\n', "JSON"),
        ("a.csv", b"<!doctype html><p>hello", "HTML"),
        ("a.csv", b"text,n\none, two, three\n", "line 2"),
        ("a.csv", b'text\n"open\n', "line 2"),
        ("a.jsonl", b'{"text": "good"}\nplain words\n', "line 2"),
        ("a.jsonl", b"[" * 100_000, "line 1"),
        ("a.jsonl", b'{"text": "good"}\n{"text": null}\n', "row 2 of 2"),
        ("a.jsonl", b'{"n": 1}\n', "no text"),
        ("a.txt", b" \n\n", "no text"),
        ("a.csv", b"text\n", "no text"),
        ("a.csv", b"", "no text"),
    ],
)
def test_what_is_not_what_its_name_says_is_refused_with_the_reason(name: str, data: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        read_texts(name, data)
    assert str(raised.value).startswith(name)


def test_a_column_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="'body'.*'text'"):
        read_texts("a.csv", b"text,n\nhello,1\n", column="body")
    with pytest.raises(ConfigError, match="plain lines"):
        read_texts("a.txt", b"hello", column="text")


def test_a_file_that_is_too_large_is_refused_unread() -> None:
    with pytest.raises(ConfigError, match="are read"):
        read_texts("a.txt", bytes(MOST_BYTES + 1))
