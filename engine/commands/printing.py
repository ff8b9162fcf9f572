"""Standard output of commands: text for people, or JSON for other programs."""

import codecs
import json
import sys
from dataclasses import asdict
from typing import Any

from engine.commands.table import printable


def print_text(text: str) -> None:
    """Print a text; on a terminal, control characters are printed as escapes."""
    print(printable(text, is_terminal=sys.stdout.isatty()))


def print_json(values: Any, *, indent: int | None = 1) -> None:
    """Print plain values and dataclasses as JSON. Raises ValueError for NaN and infinities, which JSON lacks."""
    print_json_text(json.dumps(values, ensure_ascii=False, allow_nan=False, indent=indent, default=asdict))


def print_json_text(text: str) -> None:
    """Print a text that is JSON; where standard output is not UTF-8, with its escapes such as \\u00e9."""
    if codecs.lookup(sys.stdout.encoding).name != "utf-8":
        text = "".join(mark if mark.isascii() else json.dumps(mark)[1:-1] for mark in text)
    print(text)
