"""Text cells of CSV files: spreadsheets must not take them for formulas, and reading must give the text back.

A cell that begins with = + - @, a tab or a carriage return is a formula to some of them (OWASP, CSV injection), so it
gets an apostrophe before it, as does one that looks as if it had been given one. Numbers stay as they are.
"""

import re
from typing import Any

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_ESCAPED = re.compile(r"'+[=+\-@\t\r]")


def escaped(value: Any) -> Any:
    """The cell to write for a value; anything but text is itself."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def unescaped(cell: str) -> str:
    """The text that `escaped` made the cell of."""
    return cell[1:] if _ESCAPED.match(cell) else cell
