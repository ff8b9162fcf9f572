"""Output files named by the user: rows as Parquet, CSV or JSON, by the ending of the name."""

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from engine.commands.arguments import check_writable
from engine.csv_cells import table_csv
from engine.errors import ConfigError
from engine.files import writing_whole
from engine.jsonable import plain
from engine.private_files import persons_umask

ENDINGS = (".parquet", ".csv", ".json")


def checked_path(path: Path) -> Path:
    """Return the path. Raises ConfigError for an ending that is not in ENDINGS, and where no file can be written."""
    if path.suffix not in ENDINGS:
        raise ConfigError(f"--out {path}: the name must end with {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    check_writable(path)
    return path


def write_rows(path: Path, rows: pa.Table) -> None:
    """Write rows as the ending requires: CSV with a header and lists as JSON in its cells; JSON as a list of objects.

    Raises ConfigError where that fails; the file is then unchanged.
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
        write_text(path, table_csv(rows))


def write_text(path: Path, text: str) -> None:
    """Write a text atomically. Raises ConfigError where that fails."""
    try:
        with persons_umask(), writing_whole(path) as file:
            file.write(text.encode("utf-8", "replace"))
    except OSError as error:
        raise ConfigError(f"--out {path}: could not be written: {error}") from error


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    """Convert rows of Python values to Arrow; values without an Arrow type (settings, ids) become JSON or text."""
    return pa.Table.from_pylist([{name: _simple(value) for name, value in row.items()} for row in rows])


def _simple(value: Any) -> Any:
    if isinstance(value, bool | int | float | str | date | None):
        return value
    is_nested = isinstance(value, Mapping | list | tuple)
    return json.dumps(plain(value), ensure_ascii=False) if is_nested else str(value)
