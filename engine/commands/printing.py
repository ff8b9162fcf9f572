"""Standard output of commands: text for people, or JSON for other programs."""

import json
import sys
from typing import Any

from engine.commands.table import printable


def print_text(text: str) -> None:
    """Print a text; on a terminal, control characters are printed as escapes."""
    print(printable(text, is_terminal=sys.stdout.isatty()))


def print_json(values: Any) -> None:
    """Print plain values as JSON. Raises ValueError for NaN and infinities, which JSON does not have."""
    print(json.dumps(values, ensure_ascii=False, allow_nan=False, indent=1))
