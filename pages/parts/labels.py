"""Texts of people and files for lists to choose from, which Streamlit shows as they are and tells apart by text."""

import re
from collections.abc import Hashable, Mapping
from typing import TypeVar

from engine.errors import EngineError

K = TypeVar("K", bound=Hashable)


def one_line(text: str, limit: int | None = None) -> str:
    """The text without line breaks, control and direction characters; cut to `limit` characters with an ellipsis."""
    shown = "".join(character if character.isprintable() else "\ufffd" for character in text)
    return shown if limit is None or len(shown) <= limit else shown[: limit - 1].rstrip() + "…"


def told_of(error: EngineError, fields: Mapping[str, str]) -> str:
    """The text of a failure; where it begins with the name of a parameter, with the label of its field instead."""
    return re.sub(r"^\w+", lambda name: fields.get(name[0], name[0]), str(error))


def distinct(labels: Mapping[K, str]) -> dict[K, str]:
    """The labels on one line each; those that repeat are numbered."""
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
    """A sign before what the machine does: calm, disturbing, or None where it says neither. A coloured dot in its place
    is too faint on white, and says nothing to whoever sees no colours."""
    return {True: ":material/check_circle:", False: ":material/warning:", None: ":material/remove:"}[is_calm]
