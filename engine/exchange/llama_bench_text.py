"""Text formats of llama-bench's rows: reads JSON, JSONL, CSV and SQL of any version, writes the current version."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from engine.csv_cells import escaped, unescaped
from engine.errors import ConfigError
from engine.exchange.llama_bench_rows import FIELDS, SAMPLES, Row, checked_row

Format = Literal["json", "jsonl", "csv", "sql"]
FORMATS: tuple[Format, ...] = ("json", "jsonl", "csv", "sql")
TABLE = "llama_bench"
MOST_ROWS = 10_000
MOST_SAMPLES = 100_000

# Possessive quantifiers, and columns without brackets: linear time on any text.
_IS_SQL = re.compile(r"CREATE|INSERT|BEGIN|PRAGMA|--", re.IGNORECASE)
_INSERT = re.compile(
    rf"INSERT\s++INTO\s++\"?{TABLE}\"?\s*+(?:\(([^()]*+)\)\s*+)?VALUES\s*+\(",
    re.IGNORECASE,
)
_CREATE = re.compile(
    rf"CREATE\s++TABLE\s++(?:IF\s++NOT\s++EXISTS\s++)?\"?{TABLE}\"?\s*+\(([^()]*+)\)\s*+;",
    re.IGNORECASE,
)
# llama-bench does not double quotes inside a value, so a single one ends it only if a comma or the end follows.
_VALUE = re.compile(r"\s*+(?:'((?:[^']++|''|'(?!\s{0,9}[,)]))*+)'|([^\s,')]++))\s*+([,)])")


def read_rows(text: str) -> list[Row]:
    """Read every row, checked and in the names of the current version; missing fields get their defaults.

    Raises ConfigError with line and reason for anything that is not such a row: no file is read partially.
    """
    start = text.lstrip()[:200]
    if start.startswith("["):
        found = _from_json(text)
    elif start.startswith("{"):
        found = _from_lines(text)
    elif _IS_SQL.match(start):
        found = _from_sql(text)
    else:
        found = _from_csv(text)
    rows = [checked_row(where, row) for where, row in _bounded(found)]
    if not rows:
        raise ConfigError("this file has no llama-bench rows: use the output of llama-bench -o json, jsonl, csv or sql")
    if sum(len(row.get("samples_ns", ())) for row in rows) > MOST_SAMPLES:
        raise ConfigError(f"the file has more than {MOST_SAMPLES:,} samples: split it")
    return rows


def write_rows(rows: Iterable[Mapping[str, Any]], form: Format) -> str:
    """Format the rows with exactly the fields of llama-bench, as its option -o prints them."""
    known = [{name: row[name] for name in (*FIELDS, *SAMPLES) if name in row} for row in rows]
    match form:
        case "json":
            return json.dumps(known, indent=2) + "\n"
        case "jsonl":
            return "".join(json.dumps(row) + "\n" for row in known)
        case "csv":
            out = io.StringIO()
            writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
            out.write(",".join(FIELDS) + "\n")
            writer.writerows([_as_text(escaped(row[name])) for name in FIELDS] for row in known)
            return out.getvalue()
        case _:
            return _to_sql(known)


# parsing


Found = Iterator[tuple[str, Mapping[str, Any]]]


def _bounded(found: Found) -> Found:
    for number, row in enumerate(found):
        if number == MOST_ROWS:
            raise ConfigError(f"the file has more than {MOST_ROWS:,} rows: split it")
        yield row


def _from_json(text: str) -> Found:
    rows = _parsed(text, 0)
    for number, row in enumerate(rows, 1):
        yield f"row {number}", _object(row, f"row {number}")


def _from_lines(text: str) -> Found:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield f"line {number}", _object(_parsed(line, number - 1), f"line {number}")


def _parsed(text: str, lines_before: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        hint = "; llama-bench leaves its list unclosed when interrupted: use -o jsonl" if text.startswith("[") else ""
        raise ConfigError(f"line {lines_before + error.lineno}: not JSON: {error.msg}{hint}") from error
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"line {lines_before + 1}: not JSON that can be read: {type(error).__name__}") from error


def _object(row: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: {type(row).__name__} instead of a llama-bench row")
    return row


def _from_csv(text: str) -> Found:
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        head = [name.strip() for name in next(reader, [])]
        if "n_prompt" not in head:
            raise ConfigError("line 1: not JSON, SQL or a CSV header with llama-bench's fields")
        for row in reader:
            if row:
                yield f"line {reader.line_num}", _zipped(head, [*map(unescaped, row)], f"line {reader.line_num}")
    except csv.Error as error:
        raise ConfigError(f"line {reader.line_num}: not CSV: {error}") from error


def _zipped(names: list[str], values: list[str], where: str) -> Mapping[str, Any]:
    if len(names) != len(values):
        raise ConfigError(f"{where}: {len(values)} values for {len(names)} fields")
    return dict(zip(names, values, strict=True))


def _from_sql(text: str) -> Found:
    created = _CREATE.search(text)
    table = [column.split()[0].strip('"') for column in created[1].split(",") if column.split()] if created else []
    at, line = 0, 1
    while insert := _INSERT.search(text, at):
        line += text.count("\n", at, insert.start())
        where = f"line {line}"
        names = [name.strip().strip('"') for name in insert[1].split(",")] if insert[1] else table
        values, end = _values(text, insert.end(), where)
        line += text.count("\n", insert.start(), end)
        at = end
        yield where, _zipped(names, values, where)


def _values(text: str, at: int, where: str) -> tuple[list[str], int]:
    """Return the values of an INSERT from after its opening bracket, and the position of its end."""
    values: list[str] = []
    while match := _VALUE.match(text, at):
        values.append(match[2] if match[1] is None else match[1].replace("''", "'"))
        at = match.end()
        if match[3] == ")":
            return values, at
    raise ConfigError(f"{where}: the values of this INSERT cannot be read")


# formatting


def _as_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _to_sql(rows: list[Row]) -> str:
    kinds = {str: "TEXT", float: "REAL"}
    columns = ",\n".join(f"  {name} {kinds.get(kind, 'INTEGER')}" for name, kind in FIELDS.items())
    lines = [f"CREATE TABLE IF NOT EXISTS {TABLE} (\n{columns}\n);\n"]
    for row in rows:
        values = ", ".join("'" + _as_text(row[name]).replace("'", "''") + "'" for name in FIELDS)
        lines.append(f"INSERT INTO {TABLE} ({', '.join(FIELDS)}) VALUES ({values});")
    return "\n".join(lines) + "\n"
