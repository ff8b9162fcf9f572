"""Files of prompts: JSON lines or plain lines, read one by one as they are needed, so that they may be endless."""

import codecs
import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec
import numpy as np

from engine.errors import ConfigError, EngineError, quoted
from engine.exchange.text_files import JSON_LINES, check_text, is_utf16
from engine.files import decoded_json, expanded_path
from engine.specs import Request, Sampling, given_prompt
from engine.validation import plain_text

STANDARD_INPUT = "-"
MOST_LINE_BYTES = 16 << 20
MAX_ID_CHARACTERS = 1000
_OTHERS = {".csv": "a table", ".tsv": "a table", ".json": "a single JSON value"}
_PARAMETERS = frozenset(field.name for kind in (Sampling, Request) for field in fields(kind))


@dataclass(frozen=True)
class FilePrompt:
    """One prompt of a file. index: its number, from 0; id: the one given with it; hash: of its line.

    One of `prompt` (text or ids), `messages` of a chat and `error` is not None. end: bytes of the file up to its end.
    """

    index: int
    id: str | int | None
    hash: str
    end: int
    prompt: str | list[int] | None = None
    messages: list[dict[str, str]] | None = None
    error: EngineError | None = None


class PromptFile:
    """Prompts of a file, iterated once: JSON lines (.jsonl, .ndjson), else plain lines; blank lines are skipped.

    Of a name without an ending, and of standard input ("-"), the first line decides. A JSON line is a text, or an
    object with `prompt` (text or token ids) or `messages` (role, content), and an `id` (text or number) of its own
    where wanted; other members are ignored. A line that is wrong has an error instead of a prompt.

    Raises ConfigError for a file that cannot be read or is not one of these; and in iteration, also for a line of more
    than 16 MiB and for a file without any prompt.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = "standard input" if path == STANDARD_INPUT else str(path)
        suffix = Path(path).suffix.lower()
        if suffix in _OTHERS:
            raise ConfigError(f"{self.name}: is {_OTHERS[suffix]}; save the prompts as .jsonl, or as .txt, one a line")
        self._is_json = True if suffix in JSON_LINES else False if suffix else None
        self._file = self._opened(path)
        self.status = os.fstat(self._file.fileno())
        self._ids = _SeenIds()

    def _opened(self, path: str | Path) -> BinaryIO:
        try:
            if path != STANDARD_INPUT:
                return expanded_path(path).open("rb")
            if sys.stdin is None:
                raise ValueError("it is closed")
            return open(sys.stdin.fileno(), "rb", closefd=False)
        except FileNotFoundError:
            raise ConfigError(f"{self.name}: there is no such file") from None
        except (OSError, ValueError) as error:  # also a notebook's standard input
            raise ConfigError(f"{self.name}: cannot be read ({error})") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    @property
    def num_bytes(self) -> int | None:
        """Size of the file; None of a pipe or a device."""
        return self.status.st_size or None

    def __iter__(self) -> Iterator[FilePrompt]:
        index = 0
        for number, line, end in self._lines():
            if self._is_json is None:
                self._is_json = line.lstrip().startswith(b"{")
            yield self._prompt(index, number, line, end)
            index += 1
        if not index:
            raise ConfigError(f"{self.name}: contains no prompt")

    def _lines(self) -> Iterator[tuple[int, bytes, int]]:
        """Yield each line with text: its number from 1, the line without its end, and the bytes up to its end."""
        number = end = 0
        while line := self._next_line():
            number, end = number + 1, end + len(line)
            if number == 1:
                line = self._first(line)
            if len(line) > MOST_LINE_BYTES:
                raise ConfigError(
                    f"{self.name}, line {number:,}: has more than {MOST_LINE_BYTES:,} bytes; give one prompt a line"
                )
            if line.strip():
                yield number, line.rstrip(b"\r\n"), end

    def _first(self, line: bytes) -> bytes:
        """Return the first line without a byte order mark; raises ConfigError where the file is not text in UTF-8."""
        check_text(self.name, line)
        if is_utf16(line):
            raise ConfigError(f"{self.name}: is text in UTF-16: save it as UTF-8")
        if len(line) <= MOST_LINE_BYTES:
            try:
                _text(line)
            except ConfigError as error:
                raise ConfigError(f"{self.name}: {error}") from None
        return line.removeprefix(codecs.BOM_UTF8)

    def _next_line(self) -> bytes:
        try:
            return self._file.readline(MOST_LINE_BYTES + 1)
        except OSError as error:
            raise ConfigError(f"{self.name}: cannot be read ({error})") from None

    def _prompt(self, index: int, number: int, line: bytes, end: int) -> FilePrompt:
        read = FilePrompt(index, None, hashlib.sha256(line).hexdigest()[:16], end)
        try:
            if not self._is_json:
                return replace(read, prompt=given_prompt(_text(line)))
            row = _row(line)
            read = replace(read, id=self._id(row))
            prompt, messages = _asked(row)
            return replace(read, prompt=prompt, messages=messages)
        except ConfigError as error:
            return replace(read, error=ConfigError(f"line {number:,}: {error}"))

    def _id(self, row: dict[str, Any]) -> str | int | None:
        """Return the id of a line. Raises ConfigError for one that was there before, or is not an id."""
        given = row.get("id")
        if isinstance(given, str):
            plain_text("id", given, MAX_ID_CHARACTERS)
        elif isinstance(given, bool) or not isinstance(given, int | None):
            raise ConfigError(f"id = {quoted(given)}: must be a text or a whole number")
        if given is not None and not self._ids.add(given):
            raise ConfigError(f"id = {quoted(given)}: an earlier line has it too")
        return given


def _text(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not text in UTF-8 (byte {error.start:,}): save the file as UTF-8") from None


def _row(line: bytes) -> dict[str, Any]:
    """Return the object of a JSON line; raises ConfigError. A text alone is a prompt."""
    try:
        row = decoded_json(line, Any)
    except ValueError as error:
        raise ConfigError(f"is not JSON ({error})") from None
    if isinstance(row, str):
        return {"prompt": row}
    if not isinstance(row, dict):
        raise ConfigError("is neither a JSON object nor a JSON text")
    return row


def _asked(row: dict[str, Any]) -> tuple[str | list[int] | None, list[dict[str, str]] | None]:
    """Return the prompt or else the messages of a line; raises ConfigError."""
    parameters = sorted(_PARAMETERS & row.keys())
    if parameters:
        raise ConfigError(f"{parameters[0]} holds for the whole file: give it beside the file's name, not in its lines")
    prompt, messages = row.get("prompt"), row.get("messages")
    if (prompt is None) == (messages is None):
        which = "neither prompt nor" if prompt is None else "both prompt and"
        raise ConfigError(f"has {which} messages: give one of them")
    if prompt is not None:
        return given_prompt(prompt), None
    try:
        return None, msgspec.convert(messages, list[dict[str, str]])
    except msgspec.ValidationError as error:
        raise ConfigError(f"messages: {error}") from None


class _SeenIds:
    """The ids seen so far, as 8 bytes of their hash each, sorted once there are more than `most_recent` new ones."""

    def __init__(self, most_recent: int = 1 << 16) -> None:
        self._most_recent = most_recent
        self._recent = set[int]()
        self._sorted = np.zeros(0, np.uint64)

    def add(self, id: str | int) -> bool:
        """Add an id; return False where it is there already."""
        digest = hashlib.blake2b(repr(id).encode(), digest_size=8).digest()
        key = int.from_bytes(digest, "big")
        place = int(np.searchsorted(self._sorted, np.uint64(key)))
        if key in self._recent or (place < len(self._sorted) and int(self._sorted[place]) == key):
            return False
        self._recent.add(key)
        if len(self._recent) > self._most_recent:
            self._sorted = np.union1d(self._sorted, np.fromiter(self._recent, np.uint64))
            self._recent.clear()
        return True
