"""Rates for the cost tests."""

import math
from typing import Any

from engine.cost import Rate, Speed
from engine.stats import Interval


def speed(value: float, low: float = math.nan, high: float = math.nan) -> Speed:
    return Speed(Interval(value, low, high, 8), "measured here")


def make_rate(machine: str = "desk", per_s: float = 10.0, **changes: Any) -> Rate:
    """Return a rate of `per_s` generated tokens per second, without an interval; `changes` replace its fields."""
    given = {"label": "2x8", "machine": machine, "model": "story", "generation": speed(per_s)} | changes
    return Rate(**given)
