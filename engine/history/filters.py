"""Search filter for the history: validated on construction, with conversion to and from a URL query."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Self
from urllib.parse import unquote

from engine.errors import ConfigError
from engine.history.checks import FIRST_YEAR, LAST_YEAR, checked_text
from engine.validation import Spec

Range = tuple[float | None, float | None]

LISTS = ("models", "quantisations", "machines", "questions", "origins", "statuses", "tags")
DATES = ("since", "until")
SWITCHES = ("is_starred", "has_archived", "only_archived")
MOST_CHARACTERS, MOST_VALUES, MOST_DAYS = 1000, 200, 36_500


@dataclass(frozen=True, kw_only=True)
class Filter(Spec):
    """Filter for runs, configurations or trials: all fields must match. Raises ConfigError naming the invalid field.

    text: each of its words must occur in the name, sentence, note or tags of a run, or in the prompt, messages, output,
    note or tags of a trial. models, quantisations, machines (hashes of fingerprints), questions, origins, statuses: any
    of these; a trial has no machine and no question, its origin is its label and its status the finish reason. tags:
    all of these. since, until: first and last day, in local time. days: number of days up to today, 0 for any time.
    ranges: name -> (low, high), None for an open end, of numbers among the settings of a configuration (all of the same
    one), or among a trial's sampling parameters and figures. is_starred: only those with a star. has_archived: archived
    ones as well; only_archived: nothing else.
    """

    text: str = ""
    models: tuple[str, ...] = ()
    quantisations: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    since: date | None = None
    until: date | None = None
    days: int = 0
    ranges: Mapping[str, Range] = field(default_factory=dict)
    is_starred: bool = False
    has_archived: bool = False
    only_archived: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", checked_text("text", self.text, MOST_CHARACTERS).strip())
        for name in LISTS:
            object.__setattr__(self, name, self._list(name))
        for name in DATES:
            self._check_date(name)
        if self.since and self.until and self.since > self.until:
            raise ConfigError(f"since = {self.since}: must not be after until = {self.until}")
        self._whole("days", 0, MOST_DAYS)
        object.__setattr__(self, "ranges", self._ranges())
        for name in SWITCHES:
            self._one_of(name, (True, False))

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Self:
        """Return the filter that `to_query` wrote; other names in the query are ignored.

        Raises ConfigError naming the invalid field.
        """
        return cls(**{name: _read(name, query[name]) for name in cls.__dataclass_fields__ if query.get(name)})

    def to_query(self) -> dict[str, str]:
        """Return the filter as URL query parameters, set fields only: lists with commas, ranges as n_ctx:512..4096."""
        return {name: _written(value) for name, value in self.to_dict().items() if value}

    def _list(self, name: str) -> tuple[str, ...]:
        values = getattr(self, name)
        if isinstance(values, str) or len(values) > MOST_VALUES:
            raise ConfigError(f"{name} = {values!r}: must be up to {MOST_VALUES} texts")
        if not all(values):
            raise ConfigError(f"{name}: one of its texts is empty")
        return tuple(dict.fromkeys(checked_text(name, value, MOST_CHARACTERS) for value in values))

    def _check_date(self, name: str) -> None:
        value = getattr(self, name)
        if value is not None and (type(value) is not date or not FIRST_YEAR <= value.year <= LAST_YEAR):
            raise ConfigError(f"{name} = {value}: must be a date in the years {FIRST_YEAR} to {LAST_YEAR}")

    def _ranges(self) -> dict[str, Range]:
        if len(self.ranges) > MOST_VALUES:
            raise ConfigError(f"ranges: there are {len(self.ranges):,}; up to {MOST_VALUES} are allowed")
        return {
            checked_text("ranges", name, MOST_CHARACTERS): _range(name, *ends) for name, ends in self.ranges.items()
        }


def _range(name: str, low: float | None, high: float | None) -> Range:
    ends = [end for end in (low, high) if end is not None]
    if not ends or not all(map(_is_finite, ends)) or ends != sorted(ends):
        raise ConfigError(f"ranges: {name} from {low} to {high}: must be one or two finite numbers, smallest first")
    return low, high


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max


# URL query: values by field

_SAFE = {"%": "%25", ",": "%2C", ":": "%3A"}


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_quoted, value))
    if isinstance(value, Mapping):
        return ",".join(f"{_quoted(name)}:{_end(low)}..{_end(high)}" for name, (low, high) in value.items())
    return "1" if value is True else str(value)


def _read(name: str, text: str) -> Any:
    if name in LISTS:
        return tuple(map(unquote, text.split(",")))
    if name in DATES:
        try:
            return date.fromisoformat(text)
        except ValueError:
            raise ConfigError(f"{name} = {text!r}: must be a date such as 2026-11-21") from None
    if name == "days":
        if not text.isdecimal() or len(text) > len(str(MOST_DAYS)):
            raise ConfigError(f"days = {text!r}: must be a number of days such as 7")
        return int(text)
    if name in SWITCHES:
        if text not in ("0", "1"):
            raise ConfigError(f"{name} = {text!r}: must be 1 or 0")
        return text == "1"
    return dict(map(_read_range, text.split(","))) if name == "ranges" else text


def _read_range(text: str) -> tuple[str, Range]:
    name, colon, ends = text.partition(":")
    low, dots, high = ends.partition("..")
    try:
        if name and colon and dots:
            return unquote(name), (_number(low), _number(high))
    except ValueError:
        pass
    raise ConfigError(f"ranges = {text!r}: must have the form n_ctx:512..4096, n_ctx:512.. or n_ctx:..4096")


def _quoted(text: str) -> str:
    return "".join(_SAFE.get(character, character) for character in text)


def _end(value: float | None) -> str:
    return "" if value is None else repr(value).removesuffix(".0")


def _number(text: str) -> float | None:
    return float(text) if text else None
