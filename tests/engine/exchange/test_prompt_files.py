"""Files of prompts: what is read of each line, wrong lines and wrong files, endless ones."""

import gzip
import io
import itertools
import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.exchange import prompt_files
from engine.exchange.prompt_files import FilePrompt, PromptFile

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
IDS = st.lists(st.integers(0, 4095), max_size=5)
MESSAGES = st.lists(st.fixed_dictionaries({"role": TEXTS, "content": TEXTS}), max_size=3)
ROWS = st.one_of(
    TEXTS,
    st.fixed_dictionaries({"prompt": TEXTS | IDS}, optional={"label": TEXTS}),
    st.fixed_dictionaries({"messages": MESSAGES}),
)
NESTED = "[" * 5000
WRONG = {
    "no JSON": ("not json", "is not JSON"),
    "half of it": ('{"prompt": "a"', "is not JSON"),
    "too deep": (f'{{"prompt": {NESTED}', "nested too deeply"),
    "half a surrogate pair": ('{"prompt": "\\ud800"}', "is not JSON"),
    "a list": ("[1, 2]", "neither a JSON object nor a JSON text"),
    "a number": ("7", "neither a JSON object nor a JSON text"),
    "nothing asked": ('{"text": "a"}', "has neither prompt nor messages"),
    "two things asked": ('{"prompt": "a", "messages": []}', "has both prompt and messages"),
    "a number asked": ('{"prompt": 7}', "prompt = 7: must be text or token ids"),
    "no token ids": ('{"prompt": [1, "a"]}', "'a', number 2 of its ids, is not a token id"),
    "no messages": ('{"messages": "Hello"}', "messages: Expected `array`"),
    "a message of pictures": ('{"messages": [{"role": "user", "content": [1]}]}', "messages: Expected `str`"),
    "a parameter": ('{"prompt": "a", "max_tokens": 3}', "max_tokens holds for the whole file"),
    "an id of a wrong type": ('{"prompt": "a", "id": [1]}', "id = .*: must be a text or a whole number"),
    "a truth value for an id": ('{"prompt": "a", "id": true}', "id = True: must be a text or a whole number"),
    "a long id": (json.dumps({"prompt": "a", "id": "i" * 1001}), "id: 1,001 characters"),
    "an id again": ('{"prompt": "a", "id": "first"}', "id = 'first': an earlier line has it too"),
}


def read(path: Path) -> list[FilePrompt]:
    with PromptFile(path) as file:
        return list(file)


def in_file(folder: Path, content: str | bytes, name: str = "prompts.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ROWS, min_size=1, max_size=8), blank=st.sampled_from(["\n", "\r\n", "\n\n", "\n \n"]))
def test_every_line_is_read_as_it_was_written(tmp_path: Path, rows: list[Any], blank: str) -> None:
    content = blank.join(json.dumps(row) for row in rows)
    found = read(in_file(tmp_path, content))
    asked = [row if isinstance(row, dict) else {"prompt": row} for row in rows]
    assert [(one.prompt, one.messages) for one in found] == [(row.get("prompt"), row.get("messages")) for row in asked]
    assert [one.index for one in found] == list(range(len(rows)))
    assert found[-1].end == len(content.encode())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.binary(max_size=30), max_size=8), name=st.sampled_from(["p.txt", "p.jsonl", "p"]))
def test_any_bytes_are_prompts_or_errors(tmp_path: Path, lines: list[bytes], name: str) -> None:
    content = b"\n".join(lines)
    try:
        found = read(in_file(tmp_path, content, name))
    except ConfigError as error:
        assert name in str(error)
        return
    assert len(found) == sum(bool(line.strip()) for line in content.split(b"\n"))
    assert all((one.prompt is not None) + (one.messages is not None) + (one.error is not None) == 1 for one in found)


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_line_has_an_error_and_the_others_go_on(tmp_path: Path, kind: str) -> None:
    line, message = WRONG[kind]
    first, wrong, last = read(in_file(tmp_path, f'{{"prompt": "a", "id": "first"}}\n\n{line}\n{{"prompt": "b"}}\n'))
    assert (first.id, first.prompt, first.error, last.prompt) == ("first", "a", None, "b")
    assert wrong.error is not None
    with pytest.raises(ConfigError, match=rf"^line 3: .*{message}"):
        raise wrong.error


@pytest.mark.parametrize("name", ["prompts.txt", "prompts.md", "prompts"])
def test_plain_lines_keep_their_spaces(tmp_path: Path, name: str) -> None:
    found = read(in_file(tmp_path, b"\xef\xbb\xbfOnce\r\n\r\n  upon \n{a}\ntime", name))
    assert [one.prompt for one in found] == ["Once", "  upon ", "{a}", "time"]


def test_without_an_ending_the_first_line_decides(tmp_path: Path) -> None:
    assert read(in_file(tmp_path, '{"prompt": "a"}\n{"prompt": "b"}', "prompts"))[1].prompt == "b"
    assert read(in_file(tmp_path, 'a\n{"prompt": "b"}', "prompts"))[1].prompt == '{"prompt": "b"}'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.csv", b"text\na\n", "is a table; save the prompts as .jsonl"),
        ("p.json", b"[]", "is a single JSON value"),
        ("p.txt", b"", "contains no prompt"),
        ("p.jsonl", b"\n \n", "contains no prompt"),
        ("p.txt", gzip.compress(b"a\n", mtime=0), "is compressed"),
        ("p.txt", b"PK\x03\x04", "is a ZIP archive"),
        ("p.txt", b"a\0b\n", "is binary, not text: byte 1 is zero"),
        ("p.txt", "a\nb\n".encode("utf-16"), "is text in UTF-16: save it as UTF-8"),
        ("p.txt", "é\n".encode("latin-1"), "is not text in UTF-8"),
    ],
)
def test_a_wrong_file_is_refused_by_its_name(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: {message}"):
        read(in_file(tmp_path, content, name))


def test_what_cannot_be_opened_is_said(tmp_path: Path) -> None:
    for path in (tmp_path, "a\0b"):
        with pytest.raises(ConfigError, match="cannot be read"):
            PromptFile(path)
    with pytest.raises(ConfigError, match=r"nowhere\.txt: there is no such file"):
        PromptFile(tmp_path / "nowhere.txt")


@pytest.mark.parametrize("stream", [None, io.StringIO("a")], ids=["closed", "of a notebook"])
def test_a_standard_input_that_cannot_be_read_is_said(monkeypatch: pytest.MonkeyPatch, stream: object) -> None:
    monkeypatch.setattr("sys.stdin", stream)
    with pytest.raises(ConfigError, match=r"standard input: cannot be read \((it is closed|fileno)\)"):
        PromptFile("-")


def test_a_line_without_end_ends_the_file_after_what_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_files, "MOST_LINE_BYTES", 100)
    with PromptFile(in_file(tmp_path, "a\n" + "b" * 101)) as file:
        lines = iter(file)
        assert next(lines).error is not None
        with pytest.raises(ConfigError, match="line 2: has more than 100 bytes"):
            next(lines)


def test_an_endless_file_is_read_as_far_as_it_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "endless.txt"
    os.mkfifo(path)

    def write() -> None:
        with suppress(BrokenPipeError), path.open("wb", buffering=0) as file:
            while True:
                file.write(b"Once upon a time\n")

    writer = threading.Thread(target=write)
    writer.start()
    with PromptFile(path) as file:
        assert file.num_bytes is None
        assert [one.index for one in itertools.islice(file, 1000)] == list(range(1000))
    writer.join(60)
    assert not writer.is_alive()


@given(ids=st.lists(st.integers(0, 30) | st.text("01", max_size=2), max_size=60))
def test_an_id_is_known_again_however_many_there_are(ids: list[int | str]) -> None:
    seen, known = prompt_files._SeenIds(most_recent=3), set[str]()
    for one in ids:
        assert seen.add(one) is (repr(one) not in known)
        known.add(repr(one))
