"""Number formatting: units, thousands separators and significant digits."""

import math
from decimal import Decimal
from typing import NamedTuple

NOT_MEASURED = "–"


class Scale(NamedTuple):
    """Display unit of values: multiply them by `factor`."""

    factor: float
    unit: str


HOUR_S = 3600.0
HOURS_AS_DAYS = 48
"""Hours from which a duration is written in days."""

_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"))
_PARAMETERS = ((1e9, "B"), (1e6, "M"), (1e3, "K"))
_MINUTES, _SECONDS = Scale(60, "min"), Scale(3600, "s")
"""Scales of values in hours."""


def scale_of(unit: str, largest: float) -> Scale:
    """Return the most readable display unit for values up to `largest`, given in the unit of a metric."""
    if unit == "s" and largest < 1:
        return Scale(1e3, "ms")
    if unit == "B":
        return next((Scale(1 / size, name) for size, name in _BYTES if largest >= size), Scale(1e-3, "kB"))
    if unit == "h" and largest < 1:
        return _SECONDS if largest * 60 < 1 else _MINUTES
    return Scale(100, "%") if unit == "" else Scale(1, "per s" if unit == "1/s" else unit)


def digits(value: float) -> str:
    """Format with three significant digits, as an integer from 100 upwards, with thousands separators.

    A dash where not measured.
    """
    if not math.isfinite(value):
        return NOT_MEASURED
    if abs(value) < 0.00005:
        return "0"
    decimals = 0 if abs(value) >= 99.95 else min(2 - math.floor(math.log10(abs(value))), 4)
    return f"{value:,.{max(decimals, 0)}f}"


def significant(value: float, num_digits: int = 2) -> str:
    """Format a possibly very small number with `num_digits` significant digits: 0.0042, 0.000013, 1.3, 12,000."""
    if not math.isfinite(value) or value == 0:
        return "0" if value == 0 else NOT_MEASURED
    places = num_digits - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, places):,.{max(places, 0)}f}"


def exact(value: float) -> str:
    """Format a number with all its digits and no exponent: 0.00001, 0.8, 1,048,576."""
    if not math.isfinite(value):
        return str(value)
    shown = f"{Decimal(repr(value)):,f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def quantity(value: float, unit: str) -> str:
    """Format a value given in the unit of a metric, scaled for display: 57.3 tok/s, 38.0 ms, 1.20 GB, 97.0 %."""
    if not math.isfinite(value):
        return NOT_MEASURED
    factor, shown = scale_of(unit, abs(value))
    return f"{digits(value * factor)} {shown}"


def between(low: float, high: float, unit: str, value: float | None = None) -> str:
    """Format an interval in one unit, that of `value` if given: 38.9 – 43.0 tok/s; empty where an end is unknown."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    factor, shown = scale_of(unit, abs(high if value is None else value))
    return f"{digits(low * factor)} – {digits(high * factor)} {shown}"


def parameters(number: int) -> str:
    """Format a model's number of parameters: 101 K, 5.88 M, 1.10 B."""
    found = next(((size, unit) for size, unit in _PARAMETERS if number >= size), None)
    return f"{digits(number / found[0])} {found[1]}" if found else str(number)


def duration(seconds: float) -> str:
    """Format a duration, at least 1 s: 40 s, 6 min, 1 h 20 min, 3 days 4 h; a dash where not measured."""
    if not math.isfinite(seconds):
        return NOT_MEASURED
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < HOURS_AS_DAYS:
        parts = (hours, "h"), (minutes, "min")
    else:
        days, rest = divmod(round(seconds / 3600), 24)
        parts = (days, "days"), (rest, "h")
    return " ".join(f"{number:,} {unit}" for number, unit in parts if number)


def time_taken(seconds: float) -> str:
    """Format a duration that is known well: as `duration`, with the seconds below ten minutes: 2 min 10 s."""
    if not 90 <= seconds < 600:
        return duration(seconds)
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def counted(number: int, noun: str) -> str:
    """Format a count with its noun: 1 sample, 36 samples."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def cores(number: float) -> str:
    """Format a number of processor cores in use: 0.8 cores, 1 core, 12 cores; a dash where not measured."""
    if not math.isfinite(number):
        return NOT_MEASURED
    shown = f"{number:,.{0 if number >= 9.95 else 1}f}".removesuffix(".0")
    return f"{shown} {'core' if shown == '1' else 'cores'}"


def percent(share: float, decimals: int = 0) -> str:
    """Format a fraction of 1 as a percentage: 90 %, 12.5 %."""
    return f"{100 * share:.{decimals}f} %"


def change(share: float) -> str:
    """Format a relative change: +30 %, −7 %."""
    return f"{'−' if share < 0 else '+'}{percent(abs(share))}"


def dollars(value: float) -> str:
    """Format an amount of money: $5.25, $1,234.50, and three significant digits below ten cents: $0.00123."""
    if not math.isfinite(value):
        return NOT_MEASURED
    sign, size = "−" if value < 0 else "", abs(value)
    decimals = 2 if size >= 0.1 or size == 0 else min(2 - math.floor(math.log10(size)), 8)
    return f"{sign}${size:,.{decimals}f}"
