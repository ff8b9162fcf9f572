"""Shared drawing for charts of compared runs: positions of entries, units and hover text."""

import math
from collections.abc import Sequence
from typing import Any

from engine.bench.analysis.comparison import Comparison
from engine.bench.analysis.entries import Entry
from engine.samples import METRICS_BY_NAME
from engine.units import Scale, between, quantity, scale_of
from pages.parts.benchmark import verdict_columns
from pages.parts.benchmark.chart_pen import Pen

NOT_RECORDED = "not recorded"


def having(comparison: Comparison, *metrics: str) -> list[Entry]:
    """Return the entries that have finite values of all these metrics."""
    return [
        entry
        for entry in comparison.entries
        if all(name in entry.cell.metrics and math.isfinite(entry.cell.metrics[name].value) for name in metrics)
    ]


def is_number(value: Any) -> bool:
    """Return True for values with a place on a numeric axis; on and off have none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def setting_of(entry: Entry, name: str) -> Any:
    """Return the value of a setting, or a placeholder text if the entry lacks it."""
    return entry.settings.get(name, NOT_RECORDED)


def values_of(entries: Sequence[Entry], name: str) -> list[Any]:
    """Return the values that a setting takes in order, numbers first."""
    values = {setting_of(entry, name) for entry in entries}
    return sorted(values, key=lambda value: (not is_number(value), value if is_number(value) else 0, str(value)))


def scale(entries: Sequence[Entry], metric: str) -> Scale:
    """Return the most readable unit for a metric of the entries."""
    largest = max((entry.cell.metrics[metric].value for entry in entries if metric in entry.cell.metrics), default=0.0)
    return scale_of(METRICS_BY_NAME[metric].unit, largest)


def medians(entries: Sequence[Entry], metric: str, factor: float) -> list[float]:
    """Return the medians of a metric, scaled to a unit."""
    return [entry.cell.metrics[metric].value * factor for entry in entries]


def titled(metric: str, unit: str) -> str:
    """Return the title of a metric's axis."""
    label = METRICS_BY_NAME[metric].label
    return f"{label}, {unit}" if unit else label


def symbol(entry: Entry) -> str:
    """Return the marker of an entry: a diamond for a figure from notes."""
    return "diamond-open" if entry.is_noted else "circle"


def hover(comparison: Comparison, entry: Entry) -> str:
    """Return the hover text of an entry: its value of the main metric, the verdict, and remarks."""
    metric = METRICS_BY_NAME[comparison.main_metric]
    interval, verdict = entry.cell.metrics[metric.name], comparison.verdicts.get((entry.key, metric.name))
    lines = [
        Pen.text(entry.label),
        f"<b>{quantity(interval.value, metric.unit)}</b>",
        between(interval.low, interval.high, metric.unit, interval.value),
        verdict_columns.words(verdict, metric) if verdict else "",
        Pen.text(", ".join(entry.marks)),
    ]
    return "<br>".join(filter(None, lines))


def hover_of_metrics(entry: Entry, metrics: Sequence[str]) -> str:
    """Return the hover text of an entry with several metrics."""
    figures = [
        f"{METRICS_BY_NAME[name].label} {quantity(entry.cell.metrics[name].value, METRICS_BY_NAME[name].unit)}"
        for name in metrics
    ]
    return "<br>".join([Pen.text(entry.label), *figures])
