"""Validation of text that is stored or searched for."""

from typing import Any

from engine.errors import ConfigError


def checked_text(name: str, text: Any, most: int) -> str:
    """Return the text unchanged.

    Raises ConfigError naming `name` where it is longer than `most` characters, or cannot be encoded as UTF-8.
    """
    if not isinstance(text, str) or len(text) > most:
        raise ConfigError(f"{name} = {str(text)[:40]!r}: must be text of up to {most:,} characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name} = {text[:40]!a}: cannot be encoded as UTF-8") from None
    return text
