"""What a command says on standard output: text for people, or JSON for other programs."""

import json
import sys
from typing import Any

from engine.commands.table import printable


def print_text(text: str) -> None:
    """Print it; on a terminal, characters that would steer it stand as escapes."""
    print(printable(text, is_terminal=sys.stdout.isatty()))


def print_json(values: Any) -> None:
    """Print plain values, without a number that JSON has not."""
    print(json.dumps(values, ensure_ascii=False, allow_nan=False, indent=1))
