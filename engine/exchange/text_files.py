"""Text files: reads the texts of user-supplied tables, JSON lines and plain lines, within bounds."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from engine.errors import ConfigError
from engine.models.library import shipped

MOST_BYTES = 64 << 20
TABLES, JSON_LINES = (".csv", ".tsv"), (".jsonl", ".ndjson")
TEXT_NAMES = ("text", "sentence", "prompt", "content", "document", "question", "output")
GROUP_NAMES = ("group", "label", "category", "topic", "language")
"""Column names recognised as texts (else the column with the most text) and as the groups that set their colours."""

_LOOKED_AT = 100
_MAGIC = {
    b"PK": "a ZIP archive, such as a spreadsheet",
    b"%PDF": "a PDF",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"\x1f\x8b": "compressed",
    b"GGUF": "a model",
    b"PAR1": "a Parquet table",
}


@dataclass(frozen=True)
class TextSet:
    """Texts in the order of the file.

    groups: one for each text, empty where there are none. columns: names of all columns with text; column: the one
    that was read; both empty for plain lines. num_left_out: number of texts beyond the limit.
    """

    texts: tuple[str, ...]
    groups: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    column: str = ""
    num_left_out: int = 0


def shipped_texts(language: str = "") -> TextSet:
    """Return the shipped sentences, of one language such as English (empty: of all); the group is the subject."""
    path = shipped("prompts", "sentences.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    kept = (line for line in lines if language in ("", json.loads(line)["language"]))
    return read_texts(path.name, b"".join(kept))


def read_texts(name: str, data: bytes, *, column: str | None = None, most: int | None = None) -> TextSet:
    """Read the texts of a CSV or TSV table with a header, of JSON lines, or of plain lines, by the ending of `name`.

    column: of a table or of JSON objects; None: chosen by its name, else the one with the most text. most: limit on the
    number of texts returned. Blank lines are skipped, empty cells are texts. Raises ConfigError for content that does
    not match the name's ending, and where there is no text.
    """
    text = _decoded(name, data)
    ending = PurePath(name).suffix.lower()
    if ending in TABLES or ending in JSON_LINES:
        rows = list(_table(name, text) if ending in TABLES else _json_rows(name, text))
        found = _of_rows(name, rows, column)
    elif column is not None:
        raise ConfigError(f"{name}: plain lines have no column {column!r}; columns are for .csv, .tsv and .jsonl")
    else:
        found = TextSet(tuple(line.strip() for line in text.splitlines() if line.strip()))
    if not found.texts:
        raise ConfigError(f"{name}: contains no text")
    return _bounded(found, most)


def _bounded(found: TextSet, most: int | None) -> TextSet:
    if most is None or len(found.texts) <= most:
        return found
    num_left_out = len(found.texts) - most
    return TextSet(found.texts[:most], found.groups[:most], found.columns, found.column, num_left_out)


def _decoded(name: str, data: bytes) -> str:
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{name}: has {len(data):,} bytes; up to {MOST_BYTES:,} are read")
    check_text(name, data)
    try:
        return data.decode("utf-16" if is_utf16(data) else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: is not text in UTF-8 (byte {error.start:,}): save it as UTF-8") from None


def check_text(name: str, data: bytes) -> None:
    """Raise ConfigError where a file that begins with `data` is not text."""
    for magic, kind in _MAGIC.items():
        if data.startswith(magic):
            raise ConfigError(f"{name}: is {kind}, despite its name: save its texts as .csv, .jsonl or .txt")
    if b"\0" in data and not is_utf16(data):
        raise ConfigError(f"{name}: is binary, not text: byte {data.index(0):,} is zero")


def is_utf16(data: bytes) -> bool:
    """Return whether a text begins with the byte order mark of UTF-16."""
    return data.startswith((b"\xff\xfe", b"\xfe\xff"))


def _table(name: str, text: str) -> Iterator[dict[str, Any]]:
    """Yield rows as mappings by column name; of two columns with the same name the first counts."""
    start = text.lstrip()[:1]
    if start and start in "{[<":
        kind = "HTML or XML" if start == "<" else "JSON; save it as JSON lines in a .jsonl file"
        raise ConfigError(f"{name}: is not a table; it looks like {kind}")
    csv.field_size_limit(MOST_BYTES)
    header_line = text.splitlines()[0] if text else ""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=header_line.count), strict=True)
    header: list[str] = []
    try:
        for row in reader:
            if not any(row):
                continue
            if not header:
                header = [cell.strip() or f"column {number}" for number, cell in enumerate(row, 1)]
                continue
            if len(row) != len(header):
                raise ConfigError(
                    f"{name}, line {reader.line_num:,}: has {len(row):,} cells and the header {len(header):,}; "
                    "put quotation marks around texts with commas"
                )
            yield dict(zip(reversed(header), reversed(row), strict=True))
    except csv.Error as error:
        raise ConfigError(f"{name}, line {reader.line_num:,}: is not a valid table row ({error})") from None


def _json_rows(name: str, text: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict | str):
            raise ConfigError(
                f"{name}, line {number:,}: is neither a JSON object nor a JSON string; plain lines belong in .txt"
            )
        yield row if isinstance(row, dict) else {"": row}


def _of_rows(name: str, rows: Sequence[Mapping[str, Any]], column: str | None) -> TextSet:
    first = rows[:_LOOKED_AT]
    amounts: dict[str, int] = {}
    for key, value in ((key, value) for row in first for key, value in row.items() if isinstance(value, str)):
        amounts[key] = amounts.get(key, 0) + sum(map(str.isalpha, value[:_LOOKED_AT]))
    if not amounts:
        raise ConfigError(f"{name}: contains no text")
    if column is not None and column not in amounts:
        raise ConfigError(f"{name}: has no column {column!r} with texts; it has {', '.join(map(repr, amounts))}")
    chosen = column if column is not None else _named(amounts, TEXT_NAMES) or max(amounts, key=amounts.__getitem__)
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get(chosen), str):
            raise ConfigError(f"{name}: row {number:,} of {len(rows):,} has no text in column {chosen!r}")
    group = _named({key: 0 for key in amounts if key != chosen}, GROUP_NAMES)
    groups = tuple(str(row.get(group, "")) for row in rows) if group else ()
    return TextSet(tuple(row[chosen] for row in rows), groups, tuple(amounts), chosen)


def _named(columns: Mapping[str, int], names: Sequence[str]) -> str:
    """Return the column that matches the first of these names, ignoring case; empty for none."""
    by_name = {key.strip().lower(): key for key in columns}
    return next((by_name[name] for name in names if name in by_name), "")
