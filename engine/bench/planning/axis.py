"""Axis of a plan: parses texts into values, checks them, and formats them for display."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from engine.bench.planning import engines, layout
from engine.bench.planning.layout import parse_layout
from engine.bench.planning.plan import TextWorkload, Workload
from engine.embedding.specs import EmbedSpec
from engine.errors import ConfigError, quoted
from engine.specs import PoolSpec
from engine.validation import Spec

MAX_VALUES = 2_000
LARGEST = 1 << 53
LONGEST_QUOTED = 100
_RANGE = re.compile(r"(?P<low>-?[\d.]+)\s*-\s*(?P<high>-?[\d.]+)\s*(?:(?P<sign>[+*])\s*(?P<by>[\d.]+))?")
_SWITCH = {"on": True, "yes": True, "true": True, "1": True, "off": False, "no": False, "false": False, "0": False}

Kind = Literal["whole", "real", "switch", "choice", "path", "layout", "engine", "backend"]
Where = Literal["pool", "workload", "embedding", "texts", "cell"]

SPECS: dict[Where, type[Spec]] = {
    "pool": PoolSpec,
    "workload": Workload,
    "embedding": EmbedSpec,
    "texts": TextWorkload,
}


@dataclass(frozen=True)
class Axis:
    """One parameter that a plan may vary.

    shown: format of a value in a label. where: the spec that its value belongs to, "cell" where it is in neither.
    choices: allowed values of a choice; for a switch the words for off and on. unset: the word for leaving it to
    llama.cpp, stored as None. changes_answers: another value may change the answers by more than the order of
    additions.
    """

    name: str
    label: str
    shown: str
    help: str
    unit: str = ""
    where: Where = "pool"
    kind: Kind = "whole"
    choices: tuple[str, ...] = ()
    unset: str = ""
    changes_answers: bool = False

    def parse(self, text: str) -> Any:
        """Return the value that `text` names; raises ConfigError with the text and the allowed values."""
        text = text.strip()
        if self.unset and text == self.unset:
            return None
        try:
            value: Any = text
            if self.kind in ("whole", "real"):
                value = self.number(text)
            elif self.kind == "switch":
                value = _SWITCH[text.lower()]
        except (ValueError, KeyError):
            raise ConfigError(f"{self.name}: {_quoted(text)} cannot be read; it takes {self.allowed}") from None
        return self.checked(value)

    def number(self, text: str) -> float:
        """Return a number of this axis' kind.

        Raises ValueError for any other text, and beyond the range in which a 64-bit float represents every whole
        number.
        """
        value = float(text) if self.kind == "real" else int(text)
        if abs(value) > LARGEST:
            raise ValueError(f"{text[:40]} is too large")
        return value

    def checked(self, value: Any) -> Any:
        """Return the value, a layout in its plainest spelling; raises ConfigError where this axis does not allow it."""
        if self.kind == "layout":
            return parse_layout(value).text
        if self.kind == "engine":
            return engines.checked_engine(value)
        if value is None and self.unset:
            return value
        if self.where == "cell":
            if not isinstance(value, str) or (self.choices and value not in self.choices):
                raise ConfigError(f"{self.name} = {quoted(value)}: it takes {self.allowed}")
        else:
            SPECS[self.where].from_dict({self.name: value})
        return value

    def show(self, value: Any) -> str:
        """Return a value as shown in a label, such as "8 sequences"."""
        if self.kind == "layout":
            return parse_layout(value).text.replace("x", " × ", 1)
        if self.kind in ("engine", "backend"):
            return engines.label_of(str(value))
        if self.kind == "switch" and value is not None:
            return self.choices[bool(value)]
        text = self.unset if value is None else f"{value:,}" if isinstance(value, int | float) else str(value)
        return self.shown.format(text, s="" if value == 1 else "s")

    @property
    def allowed(self) -> str:
        """Allowed values, as the end of a sentence."""
        allowed = {
            "whole": "whole numbers, such as 1,2,4 or 1-8*2 or 1-7+2",
            "real": "numbers, such as 0.5,1 or 0.5-8*2",
            "switch": "on or off",
            "choice": f"one of {', '.join(self.choices)}",
            "path": "a path",
            "layout": layout.ALLOWED,
            "engine": engines.ALLOWED,
            "backend": f"one of {', '.join(self.choices)}, or {engines.OF_A_PERSON}",
        }[self.kind]
        return f"{allowed}, or {self.unset}" if self.unset else allowed


def values_of(axis: Axis, text: str) -> tuple[Any, ...]:
    """Return the values of "1,2,4", with llama-bench's ranges "1-4", "1-7+2" and "1-8*2" between the commas.

    Each value once, in the order given. Raises ConfigError with the text and the allowed values, or with the number of
    values when that is more than MAX_VALUES, repeated ones counted.
    """
    values: list[Any] = []
    for part in map(str.strip, text.split(",")):
        span = _RANGE.fullmatch(part) if axis.kind in ("whole", "real") else None
        values += _range(axis, span) if span else (axis.parse(part),)
        if len(values) > MAX_VALUES:
            raise ConfigError(f"{axis.name}: {_quoted(text)} has more than {MAX_VALUES:,} values: name fewer")
    return tuple(dict.fromkeys(values))


def _quoted(text: str) -> str:
    return repr(text if len(text) <= LONGEST_QUOTED else f"{text[:LONGEST_QUOTED]}…")


def _range(axis: Axis, span: re.Match[str]) -> Iterator[Any]:
    """Yield low, low + by, … or low, low × by, … up to high; the number is checked before any is made."""
    text = span[0]
    try:
        low, high, by = (axis.number(span[group] or "1") for group in ("low", "high", "by"))
    except ValueError:
        raise ConfigError(f"{axis.name}: {_quoted(text)} cannot be read; it takes {axis.allowed}") from None
    is_product = span["sign"] == "*"
    if high < low:
        raise ConfigError(f"{axis.name}: {_quoted(text)} counts down: write the smaller number first")
    if by <= is_product or (is_product and low <= 0):
        raise ConfigError(
            f"{axis.name}: {_quoted(text)} has no end: a step must be above 0, a factor above 1, its start above 0"
        )
    # 1e-9: log(1000, 10) is a little less than 3, and 0.3 - 0.1 less than 0.2.
    steps = (math.log(high / low, by) if is_product else (high - low) / by) + 1e-9
    if not steps < MAX_VALUES:
        num = f"{math.floor(steps) + 1:,}" if math.isfinite(steps) else "infinitely many"
        raise ConfigError(
            f"{axis.name}: {_quoted(text)} has {num} values; up to {MAX_VALUES:,} are allowed: take a larger step"
        )
    for index in range(math.floor(steps) + 1):
        value = low * by**index if is_product else low + by * index
        yield axis.checked(round(value, 9))
