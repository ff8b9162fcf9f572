"""Findings in words: figures with their intervals, verdicts, and lines of a Markdown table."""

import math
import re

from engine.stats import Interval, Verdict
from engine.stats.verdicts import SAME_WITHIN
from engine.units import NOT_MEASURED, counted, digits, quantity, scale_of


def figure(interval: Interval | None, unit: str) -> str:
    """41.0 tok/s (38.9 to 43.0); a dash where not measured."""
    if interval is None:
        return quantity(math.nan, unit)
    factor, _ = scale_of(unit, abs(interval.value))
    return f"{quantity(interval.value, unit)}{_bounds(interval, factor)}"


def cosine(value: float) -> str:
    """A cosine or a correlation with the digits that tell loss: 0.9962; a dash where not known."""
    return f"{value:.4f}" if math.isfinite(value) else NOT_MEASURED


def times(ratio: Interval) -> str:
    """1.32 times (1.20 to 1.45)."""
    return f"{ratio.value:.2f} times{_bounds(ratio, 1.0, '.2f')}"


def told(verdict: Verdict) -> str:
    """The verdict's word with the ratio, or with the rounds that are missing."""
    if verdict.word == "not enough data":
        return f"not enough data: {counted(verdict.more_rounds, 'more round')}"
    word = f"same within ±{100 * SAME_WITHIN:.0f} %" if verdict.word == "same" else verdict.word
    return f"{word}: {times(verdict.ratio)}"


def row(columns: list[str]) -> str:
    """A row of a Markdown table; the columns are Markdown."""
    return f"| {' | '.join(columns)} |"


def escaped(text: str) -> str:
    """Text of people and models on one line that Markdown shows as it is."""
    line = "".join(mark if mark.isprintable() else " " for mark in text)
    return re.sub(r"([\\`*_\[\]<>|~#$!&])", r"\\\1", line)


def _bounds(interval: Interval, factor: float, form: str = "") -> str:
    if not math.isfinite(interval.low + interval.high):
        return ""
    low, high = (format(bound, form) if form else digits(bound * factor) for bound in (interval.low, interval.high))
    return f" ({low} to {high})"
