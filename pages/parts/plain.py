"""Text of people and models, made safe for labels that Streamlit would read as Markdown."""

import string
import unicodedata

_PUNCTUATION = frozenset(string.punctuation)
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
# Streamlit replaces :names: after Markdown was read, where a backslash no longer helps; a word joiner breaks the name.
_COLON = "\\:\u2060"


def plain(text: str, limit: int | None = None) -> str:
    """Markdown that shows `text` as it is, on one line; longer text is cut to `limit` characters with an ellipsis.

    Line breaks become ↵, control and direction characters the replacement character.
    """
    if limit is not None and len(text) > limit:
        text = text[: limit - 1].rstrip() + "…"
    return "".join(_escaped(character) for character in text)


def visible(text: str) -> str:
    """One line of text for where Markdown is not read: as `plain`, with nothing escaped."""
    return "".join(map(_seen, text))


def _escaped(character: str) -> str:
    if character == ":":
        return _COLON
    if character in _PUNCTUATION:
        return "\\" + character
    return _seen(character)


def _seen(character: str) -> str:
    if character in "\n\r":
        return "↵"
    if character == "\t":
        return " "
    return "\ufffd" if unicodedata.category(character) in _INVISIBLE else character
