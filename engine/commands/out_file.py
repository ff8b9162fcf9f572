"""Rows as a file that a person names: Parquet, CSV or JSON, by its ending."""

import csv
import io
import json
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from engine.commands.arguments import check_writable
from engine.csv_cells import escaped
from engine.errors import ConfigError
from engine.history.whole_file import writing_whole
from engine.jsonable import figure
from engine.private_files import persons_umask

ENDINGS = (".parquet", ".csv", ".json")


def checked_path(path: Path) -> Path:
    """The path; raises ConfigError for an ending that is none of ENDINGS, and where no file can be written."""
    if path.suffix not in ENDINGS:
        raise ConfigError(f"--out {path}: the name must end with {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    check_writable(path)
    return path


def write_rows(path: Path, rows: pa.Table) -> None:
    """Write rows as the ending says: CSV with a heading, lists in its cells as JSON; JSON as a list of objects.

    Raises ConfigError where that fails; the file is then as it was.
    """
    if path.suffix == ".parquet":
        try:
            with persons_umask(), writing_whole(path) as file:
                pq.write_table(rows, file)
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(f"--out {path}: could not be written: {error}") from error
    elif path.suffix == ".json":
        write_text(path, json.dumps(plain(rows.to_pylist()), ensure_ascii=False, allow_nan=False, indent=1) + "\n")
    else:
        write_text(path, _csv(rows))


def write_text(path: Path, text: str) -> None:
    """Write a text whole or not at all. Raises ConfigError where that fails."""
    try:
        with persons_umask(), writing_whole(path) as file:
            file.write(text.encode("utf-8", "replace"))
    except OSError as error:
        raise ConfigError(f"--out {path}: could not be written: {error}") from error


def plain(value: Any) -> Any:
    """Values of the database as JSON has them: times and ids as text, null for figures that are not finite."""
    match value:
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case bool() | int() | str() | None:
            return value
        case float():
            return figure(value)
        case bytes():
            return value.hex()
        case Decimal():
            return float(value)
        case date():
            return value.isoformat()
        case _:
            return str(value)


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of Python values as Arrow: what has no type of its own there (settings, ids) as JSON or text."""
    return pa.Table.from_pylist([{name: _simple(value) for name, value in row.items()} for row in rows])


def _simple(value: Any) -> Any:
    if isinstance(value, bool | int | float | str | date | None):
        return value
    is_nested = isinstance(value, Mapping | list | tuple)
    return json.dumps(plain(value), ensure_ascii=False) if is_nested else str(value)


def _csv(rows: pa.Table) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(map(escaped, rows.column_names))
    for batch in rows.to_batches(2048):
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            writer.writerow([escaped(_cell(value)) for value in row])
    return text.getvalue()


def _cell(value: Any) -> Any:
    given = plain(value)
    return json.dumps(given, ensure_ascii=False) if isinstance(given, dict | list) else given
