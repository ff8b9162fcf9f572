"""Table columns of metrics: medians with their intervals, and verdicts as an arrow and a word on a coloured badge."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pandas as pd
import streamlit as st

from engine.bench.analysis.summary import words_of
from engine.samples import METRICS_BY_NAME, Metric
from engine.stats import Interval, Verdict
from engine.units import counted, digits, scale_of
from pages.parts import number_columns
from pages.parts.plain import plain

Kind = Literal["good", "bad", "same", "open"]
SHADES: Mapping[Kind, str] = {"good": "green", "bad": "orange"}
"""Names of colours of the theme, which the browser fills in."""

ARROWS: dict[Kind, str] = {"good": "↑", "bad": "↓", "same": "=", "open": "?"}
FORMULAS = {metric.label: metric.formula for metric in METRICS_BY_NAME.values()}


class Judged(NamedTuple):
    """Verdicts on the rows of a table, None for a row without one, in the metric that they judge.

    help: what they were judged against, where that is not the baseline.
    """

    verdicts: Sequence[Verdict | None]
    metric: Metric
    help: str | None = None


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
    shade = SHADES.get(kind_of(verdict, metric))
    sentence = plain(words(verdict, metric))
    return f":{shade}[{sentence}]" if shade else sentence


def measured(metric: Metric, intervals: Sequence[Interval | None]) -> dict[str, list[Any]]:
    """Return a metric's column followed by that of its intervals; empty if there is no value."""
    values = [interval.value if interval else math.nan for interval in intervals]
    columns: dict[str, list[Any]] = {**number_columns.scaled(metric.label, metric.unit, values)}
    if columns:
        columns[f"{metric.label}, 95 %"] = [_bounds(one, metric.unit, values) for one in intervals]
    return columns


def drawn(table: pd.DataFrame, judged: Iterable[str]) -> pd.DataFrame:
    """Return a table in which the words of these columns are badges, as Streamlit takes them: lists of texts."""
    return table.assign(**{name: [[text] if text else [] for text in table[name]] for name in judged})


def config(table: pd.DataFrame, pinned: str, judged: Mapping[str, Judged]) -> dict[str, Any]:
    """Return the column configuration, with each metric's formula in its heading's help; `pinned` is always visible.

    judged: the columns of verdicts in words, whose badges have the colours of `SHADES`.
    """
    badges = {name: _badges(of) for name, of in judged.items()}
    return {pinned: st.column_config.TextColumn(pinned=True), **number_columns.formats(table, FORMULAS), **badges}


def _badges(of: Judged) -> Any:
    kinds = {words(verdict, of.metric): kind_of(verdict, of.metric) for verdict in of.verdicts if verdict}
    shades = {text: SHADES[kind] for text, kind in kinds.items() if kind in SHADES}
    return st.column_config.MultiselectColumn(
        options=list(shades), color=list(shades.values()) or None, help=of.help or of.metric.formula
    )


def _bounds(interval: Interval | None, unit: str, values: Sequence[float]) -> str:
    """Return both ends of an interval, in the unit of its column."""
    if interval is None or not math.isfinite(interval.low + interval.high):
        return ""
    factor = scale_of(unit, max(abs(value) for value in values if math.isfinite(value))).factor
    return f"{digits(interval.low * factor)} – {digits(interval.high * factor)}"
