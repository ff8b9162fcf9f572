"""Validation of texts and times that are stored or searched for."""

from datetime import UTC, datetime
from typing import Any

from engine.errors import ConfigError

FIRST_YEAR, LAST_YEAR = 1900, 9000
"""Years of times that are kept: beyond them local time, or the margin of a chart, may not be a date any more."""


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


def checked_name(name: Any, most: int) -> str:
    """Return a name without space around it; raises ConfigError where it is empty, too long or not UTF-8."""
    checked_text("name", name, most)
    if not name.strip():
        raise ConfigError(f"name = {name[:most]!r}: must have 1 to {most} characters")
    return str(name).strip()


def checked_time(at: datetime) -> datetime:
    """Return the time in UTC.

    Raises ConfigError where it has no time zone, or its year in UTC is not one of FIRST_YEAR to LAST_YEAR.
    """
    if at.utcoffset() is None:
        raise ConfigError(f"created_at = {at}: must have a time zone")
    # A year or two beyond, in another zone, can still be converted.
    if not FIRST_YEAR - 1 <= at.year <= LAST_YEAR + 1 or not FIRST_YEAR <= at.astimezone(UTC).year <= LAST_YEAR:
        raise ConfigError(f"created_at = {at}: must be in the years {FIRST_YEAR} to {LAST_YEAR}")
    return at.astimezone(UTC)


def stored_time(at: datetime) -> datetime:
    """Return the time as the tables hold it, in UTC without a zone; raises ConfigError as `checked_time`."""
    return checked_time(at).replace(tzinfo=None)
