"""Escaping of text from people and models for labels that Streamlit would read as Markdown."""

import html
import string
import unicodedata

_PUNCTUATION = frozenset(string.punctuation)
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
# Streamlit replaces :names: after parsing Markdown, when a backslash no longer helps; a word joiner breaks the name.
_COLON = "\\:\u2060"


def plain(text: str, limit: int | None = None) -> str:
    """Return Markdown that shows `text` verbatim on one line, cut to `limit` characters with an ellipsis.

    Line breaks become ↵, control and direction characters the replacement character.
    """
    if limit is not None and len(text) > limit:
        text = text[: limit - 1].rstrip() + "…"
    return "".join(_escaped(character) for character in text)


def visible(text: str) -> str:
    """Return one line of text for places without Markdown: as `plain`, with nothing escaped."""
    return text if text.isprintable() else "".join(map(_seen, text))


def escaped_html(text: str) -> str:
    """Return HTML that shows `text` verbatim: line breaks and tabs stay, other control and direction characters become
    the replacement character."""
    return html.escape("".join(one if one in "\n\t" else _seen(one) for one in text))


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
