"""Escaping of CSV text cells: prevents formula injection in spreadsheets and is reversible on import.

Some spreadsheets read a cell that begins with = + - @, a tab or a carriage return as a formula (OWASP, CSV injection),
so such a cell gets a leading apostrophe, as does a cell that looks already escaped. Numbers are written unchanged.
"""

import csv
import io
import json
import re
from typing import TYPE_CHECKING, Any

from engine.jsonable import plain

if TYPE_CHECKING:
    import pyarrow as pa

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_ESCAPED = re.compile(r"'+[=+\-@\t\r]")


def escaped(value: Any) -> Any:
    """Return the cell to write for a value; anything but text is returned unchanged."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def unescaped(cell: str) -> str:
    """Return the original text of a cell written by `escaped`."""
    return cell[1:] if _ESCAPED.match(cell) else cell


def table_csv(rows: "pa.Table") -> str:
    """Return a table as CSV with a header row; lists and structs are JSON, texts and column names are escaped."""
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
