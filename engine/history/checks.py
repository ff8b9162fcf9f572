"""What text must be like to be kept or looked for."""

from typing import Any

from engine.errors import ConfigError


def checked_text(name: str, text: Any, most: int) -> str:
    """The text itself; raises ConfigError naming `name` where it is longer than `most`, or cannot become UTF-8."""
    if not isinstance(text, str) or len(text) > most:
        raise ConfigError(f"{name} = {str(text)[:40]!r}: must be text of up to {most:,} characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name} = {text[:40]!a}: has characters that no text has") from None
    return text
