"""Labels from texts of people and files, for lists that Streamlit shows verbatim and distinguishes by text."""

import re
from collections.abc import Hashable, Mapping
from typing import TypeVar

from engine.errors import EngineError

K = TypeVar("K", bound=Hashable)
_SYMBOLS = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥"})


def one_line(text: str, limit: int | None = None) -> str:
    """Return the text without line breaks, control and direction characters, cut to `limit` with an ellipsis."""
    shown = "".join(character if character.isprintable() else "\ufffd" for character in text)
    return shown if limit is None or len(shown) <= limit else shown[: limit - 1].rstrip() + "…"


def token_text(text: str) -> str:
    """Return a token's text on one line, with its spaces, tabs and line breaks as symbols."""
    return one_line(text.translate(_SYMBOLS))


def error_text(error: EngineError, fields: Mapping[str, str]) -> str:
    """Return the text of an error, with a parameter's name at its beginning replaced by the label of its field."""
    return re.sub(r"^\w+", lambda name: fields.get(name[0], name[0]), str(error))


def distinct(labels: Mapping[K, str]) -> dict[K, str]:
    """Return the labels on one line each; repeated ones are numbered."""
    found: dict[K, str] = {}
    taken: set[str] = set()
    for key, label in labels.items():
        shown = text = one_line(label)
        number = 1
        while shown in taken:
            number += 1
            shown = f"{text} ({number})"
        taken.add(shown)
        found[key] = shown
    return found


def calm_sign(is_calm: bool | None) -> str:
    """Return an icon for the machine's state: calm, disturbing, or None for neither.

    A coloured dot would be too faint on white, and indistinguishable without colour vision.
    """
    return {True: ":material/check_circle:", False: ":material/warning:", None: ":material/remove:"}[is_calm]
