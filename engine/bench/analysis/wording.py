"""Wording of findings: figures with their intervals, verdicts, and rows of a Markdown table."""

import math
import re
from typing import Any

from engine.jsonable import figure as number
from engine.samples import Metric
from engine.stats import Interval, Verdict
from engine.stats.verdicts import SAME_WITHIN
from engine.units import NOT_MEASURED, counted, digits, quantity, scale_of

SPEEDS = ("tok/s", "sent/s", "s")
"""Units of metrics that are faster or slower; of others there is more or less."""

CONFIDENCE = 0.95
"""Confidence level of all intervals in findings."""

_DOUBLE = 2.0
"""Ratio from which on it is given as a factor instead of percent."""


def figure(interval: Interval | None, unit: str) -> str:
    """Format a figure with its interval, such as 41.0 tok/s (38.9 to 43.0); a dash where not measured."""
    if interval is None:
        return quantity(math.nan, unit)
    factor, _ = scale_of(unit, abs(interval.value))
    return f"{quantity(interval.value, unit)}{_bounds(interval, factor)}"


def cosine(value: float) -> str:
    """Format a cosine or correlation with enough digits to show a loss, such as 0.9962; a dash where not known."""
    return f"{value:.4f}" if math.isfinite(value) else NOT_MEASURED


def times(ratio: Interval) -> str:
    """Format a ratio as a factor, such as 1.32 times (1.20 to 1.45)."""
    return f"{ratio.value:.2f} times{_bounds(ratio, 1.0, '.2f')}"


def verdict_text(verdict: Verdict) -> str:
    """Format a verdict: its word, ratio and p-value, and the number of missing rounds."""
    if verdict.word == "same":
        return f"same within ±{100 * SAME_WITHIN:.0f} %: {times(verdict.ratio)}"
    said = f"{verdict.word}: {times(verdict.ratio)}" if verdict.ratio.num else verdict.word
    said += f", {p_value(verdict.p_value)}" if math.isfinite(verdict.p_value) else ""
    return f"{said}, {counted(verdict.more_rounds, 'more round')}" if verdict.more_rounds else said


def p_value(value: float) -> str:
    """Format a p-value as p = 0.012, or p < 0.001 for smaller ones."""
    return f"p = {value:.3f}" if value >= 0.001 else "p < 0.001"


def plain_verdict(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain values for JSON, with everything that the pages show of it."""
    return {
        "word": verdict.word,
        "ratio": {name: number(value) for name, value in verdict.ratio._asdict().items()},
        "confidence": CONFIDENCE,
        "p_value": number(verdict.p_value),
        "num_rounds": verdict.num_rounds,
        "more_rounds": verdict.more_rounds,
    }


def gain_of(ratio: Interval, is_more_better: bool | None) -> Interval:
    """Invert a ratio where less is better, so that above 1 is better."""
    if is_more_better is not False:
        return ratio
    return ratio._replace(value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low)


def looks(name: str, other: str, ratio: Interval, metric: Metric) -> str:
    """Return a clause: "a looks 12 % faster than b (8 to 16 %)", "a looks 3.20 times as fast as b (2.9 to 3.5)".

    ratio: of `name` over `other`. For metrics other than speed: "a looks to have 12 % more goodput than b (8 to 16 %)".
    """
    is_speed = metric.unit in SPEEDS
    gain = gain_of(ratio, metric.is_more_better) if is_speed else ratio
    verb = "looks" if is_speed else "looks to have"
    if gain.value >= _DOUBLE:
        as_much = "as fast as" if is_speed else f"the {metric.label} of"
        return f"{name} {verb} {gain.value:.2f} times {as_much} {other}{_bounds(gain, 1, '.2f')}"
    is_more = gain.value >= 1
    what = ("faster" if is_more else "slower") if is_speed else f"{'more' if is_more else 'less'} {metric.label}"
    return f"{name} {verb} {_signed(abs(gain.value - 1))} % {what} than {other}{_shares(gain)}"


def row(columns: list[str]) -> str:
    """Return a row of a Markdown table; the columns are Markdown already."""
    return f"| {' | '.join(columns)} |"


def escaped(text: str) -> str:
    """Escape text of users and models for Markdown, on a single line."""
    line = "".join(mark if mark.isprintable() else " " for mark in text)
    return re.sub(r"([\\`*_\[\]<>|~#$!&])", r"\\\1", line)


def _bounds(interval: Interval, factor: float, form: str = "") -> str:
    if not math.isfinite(interval.low + interval.high):
        return ""
    low, high = (format(bound, form) if form else digits(bound * factor) for bound in (interval.low, interval.high))
    return f" ({low} to {high})"


def _shares(gain: Interval) -> str:
    """Format the interval of a gain in percent, both ends in the direction of the value."""
    if not math.isfinite(gain.low + gain.high):
        return ""
    low, high = (gain.low - 1, gain.high - 1) if gain.value >= 1 else (1 - gain.high, 1 - gain.low)
    return f" ({_signed(low)} to {_signed(high)} %)"


def _signed(share: float) -> str:
    shown = f"{abs(100 * share):.{0 if abs(share) >= 0.0995 or abs(share) < 0.0005 else 1}f}"
    return f"−{shown}" if share < 0 and float(shown) else shown
