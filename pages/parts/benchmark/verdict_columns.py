"""Table columns of metrics: medians with their intervals, and verdicts as an arrow and a coloured word."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import pandas as pd
import streamlit as st

from engine.bench.analysis.summary import words_of
from engine.samples import METRICS_BY_NAME, Metric
from engine.stats import Interval, Verdict
from engine.units import counted, digits, scale_of
from pages.parts import number_columns
from pages.parts.plain import plain

Kind = Literal["good", "bad", "same", "open"]
COLOURS: dict[str, dict[Kind, str]] = {
    "light": {"good": "#1A7F37", "bad": "#9A6700"},
    "dark": {"good": "#3FB950", "bad": "#D29922"},
}
ARROWS: dict[Kind, str] = {"good": "↑", "bad": "↓", "same": "=", "open": "?"}
FORMULAS = {metric.label: metric.formula for metric in METRICS_BY_NAME.values()}


def kind_of(verdict: Verdict, metric: Metric) -> Kind:
    """Classify a verdict as good, bad, same or open."""
    better, worse = words_of(metric)
    kinds: dict[str, Kind] = {better: "good", worse: "bad", "same": "same"}
    return kinds.get(verdict.word, "open")


def words(verdict: Verdict, metric: Metric) -> str:
    """Return a verdict as an arrow, the word, and the ratio."""
    kind = kind_of(verdict, metric)
    if kind == "open":
        seen = f"{verdict.ratio.value:.2f} ×" if verdict.ratio.num else "not enough data"
        more = f" · {counted(verdict.more_rounds, 'more round')}" if verdict.more_rounds else ""
        return f"{ARROWS[kind]} {seen}{more}"
    if kind == "same":
        return f"{ARROWS[kind]} same within 2 %"
    return f"{ARROWS[kind]} {verdict.word} {verdict.ratio.value:.2f} ×"


def coloured(verdict: Verdict, metric: Metric) -> str:
    """Return a verdict as `words`, as Markdown in the colour of its kind."""
    shade = {"good": "green", "bad": "orange"}.get(kind_of(verdict, metric))
    told = plain(words(verdict, metric))
    return f":{shade}[{told}]" if shade else told


def styles(verdicts: Sequence[Verdict | None], metric: Metric) -> list[str]:
    """Return the style of each verdict's field, in the colours of the browser's current theme."""
    shades = COLOURS[st.context.theme.type or "light"]
    kinds = [kind_of(verdict, metric) if verdict else None for verdict in verdicts]
    return [f"color: {shades[kind]}" if kind in shades else "" for kind in kinds]


def measured(metric: Metric, intervals: Sequence[Interval | None]) -> dict[str, list[Any]]:
    """Return a metric's column followed by that of its intervals; empty if there is no value."""
    values = [interval.value if interval else math.nan for interval in intervals]
    columns: dict[str, list[Any]] = {**number_columns.scaled(metric.label, metric.unit, values)}
    if columns:
        columns[f"{metric.label}, 95 %"] = [_bounds(one, metric.unit, values) for one in intervals]
    return columns


def config(table: pd.DataFrame, pinned: str) -> dict[str, Any]:
    """Return the column configuration, with each metric's formula in its heading's help; `pinned` is always visible."""
    return {pinned: st.column_config.TextColumn(pinned=True), **number_columns.formats(table, FORMULAS)}


def _bounds(interval: Interval | None, unit: str, values: Sequence[float]) -> str:
    """Return both ends of an interval, in the unit of its column."""
    if interval is None or not math.isfinite(interval.low + interval.high):
        return ""
    factor = scale_of(unit, max(abs(value) for value in values if math.isfinite(value))).factor
    return f"{digits(interval.low * factor)} – {digits(interval.high * factor)}"
