"""Scatter chart of the main metric against any setting or other metric, by colour and by panel."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from engine.bench.analysis.comparison import Comparison
from engine.bench.analysis.entries import Entry, heading, label_of, shown
from engine.samples import METRICS_BY_NAME
from engine.units import Scale, quantity
from pages.parts.benchmark.chart_pen import (
    ACCENT,
    COLOURS,
    GREY,
    HEIGHT,
    NUM_SHADES,
    Pen,
    bars,
    legend_below,
    ramp,
    style,
    ticks_at,
)
from pages.parts.compare import run_pen

MOST_PANELS, PANELS_ACROSS, PANEL_HEIGHT = 6, 3, 260
OTHERS = "others"
Groups = dict[str, list[Entry]]


class Axes(NamedTuple):
    """The x axis, colour and panel of a scatter chart: names of settings, for `x` also of a metric; empty for none.

    `is_log` puts the main metric on a logarithmic scale.
    """

    x: str
    colour: str = ""
    panel: str = ""
    is_log: bool = False


def scatter(comparison: Comparison, axes: Axes) -> go.Figure:
    """Draw medians with their intervals; the baseline is a dashed line."""
    metric = comparison.main_metric
    drawn = [entry for entry in run_pen.having(comparison, metric) if _has(entry, axes.x)]
    across, scale = _Across(drawn, axes.x), run_pen.scale(drawn, metric)
    panels, colours = _groups(drawn, axes.panel, MOST_PANELS), _groups(drawn, axes.colour, len(COLOURS))
    figure = _panelled(panels, axes.panel)
    style(figure, _finding(drawn, metric), height=max(HEIGHT, PANEL_HEIGHT * _num_rows(panels)))
    for number, panel in enumerate(panels.values()):
        row, column = divmod(number, PANELS_ACROSS)
        for (label, alike), shade in zip(colours.items(), _shades(colours, axes.colour), strict=True):
            chosen = [entry for entry in panel if entry in alike]
            figure.add_scatter(
                x=across.places(chosen), **_medians(comparison, chosen, scale, shade), name=Pen.text(label, 40),
                legendgroup=label, showlegend=bool(axes.colour) and number == 0, row=row + 1, col=column + 1,
            )  # fmt: skip
    base = next((entry for entry in drawn if entry.key == comparison.baseline), None)
    if base is not None and len(drawn) > 1:
        level = base.cell.metrics[metric].value * scale.factor
        figure.add_hline(y=level, line={"color": GREY, "dash": "dash", "width": 1.2})
    across.draw(figure)
    figure.update_yaxes(type="log" if axes.is_log else "linear", rangemode="tozero")
    figure.update_yaxes(title=run_pen.titled(metric, scale.unit), col=1)
    if axes.colour:
        legend_below(figure)
        figure.update_layout(legend={"title": {"text": Pen.text(heading(axes.colour))}})
    return figure


class _Across:
    """The horizontal axis: a metric in its unit, a numeric setting, or a setting's values as text."""

    def __init__(self, entries: Sequence[Entry], name: str) -> None:
        self._name = name
        self._is_metric = name in METRICS_BY_NAME
        self._scale = run_pen.scale(entries, name) if self._is_metric else Scale(1, "")
        self._values = [] if self._is_metric else run_pen.values_of(entries, name)
        self._is_numeric = bool(self._values) and all(map(run_pen.is_number, self._values))

    def places(self, entries: Sequence[Entry]) -> list[Any]:
        """Return the positions of the entries."""
        if self._is_metric:
            return run_pen.medians(entries, self._name, self._scale.factor)
        values = [entry.settings[self._name] for entry in entries]
        return values if self._is_numeric else [self._word(value) for value in values]

    def draw(self, figure: go.Figure) -> None:
        """Apply this axis to the charts."""
        if self._is_metric:
            figure.update_xaxes(title=run_pen.titled(self._name, self._scale.unit), rangemode="tozero")
            return
        if self._is_numeric:
            ticks_at(figure, self._values)
        else:
            words = [self._word(value) for value in self._values]
            figure.update_xaxes(type="category", categoryorder="array", categoryarray=words)
        figure.update_xaxes(title=Pen.text(heading(self._name)))

    def _word(self, value: Any) -> str:
        return Pen.text(shown(self._name, value), 40)


def _has(entry: Entry, name: str) -> bool:
    return name in entry.cell.metrics if name in METRICS_BY_NAME else name in entry.settings


def _groups(entries: Sequence[Entry], name: str, most: int) -> Groups:
    """Group entries by their value of a setting, in its order; beyond `most` values, the last ones share a group."""
    if not name:
        return {"": list(entries)}
    values = run_pen.values_of(entries, name)
    own = values if len(values) <= most else values[: most - 1]
    groups: Groups = {shown(name, value): [] for value in own}
    for entry in entries:
        value = run_pen.setting_of(entry, name)
        groups.setdefault(shown(name, value) if value in own else OTHERS, []).append(entry)
    return groups


def _shades(groups: Groups, name: str) -> list[str]:
    """Return a colour for each group: light to dark for a few numbers, else categorical colours, grey for "others"."""
    if not name:
        return [ACCENT]
    values = run_pen.values_of([entry for group in groups.values() for entry in group], name)
    is_ordered = all(map(run_pen.is_number, values)) and len(groups) <= NUM_SHADES
    shades = ramp(len(groups)) if is_ordered else COLOURS[: len(groups)]
    return [GREY if label == OTHERS else shade for label, shade in zip(groups, shades, strict=True)]


def _num_rows(panels: Groups) -> int:
    return math.ceil(len(panels) / PANELS_ACROSS)


def _panelled(panels: Groups, name: str) -> go.Figure:
    """Return an empty chart for each panel, all with the same axes."""
    titles = [Pen.text(f"{label_of(name)}: {label}", 40) for label in panels] if name else None
    figure = make_subplots(
        rows=max(1, _num_rows(panels)), cols=max(1, min(len(panels), PANELS_ACROSS)), shared_xaxes="all",
        shared_yaxes="all", subplot_titles=titles, horizontal_spacing=0.03, vertical_spacing=0.12,
    )  # fmt: skip
    figure.update_annotations(font={"size": 13})
    return figure


def _medians(comparison: Comparison, entries: list[Entry], scale: Scale, shade: str) -> dict[str, Any]:
    """Return the trace options for medians with their intervals as thin bars."""
    metric = comparison.main_metric
    return {
        "y": run_pen.medians(entries, metric, scale.factor),
        "error_y": bars([entry.cell.metrics[metric] for entry in entries], scale, shade),
        "mode": "markers",
        "marker": {"color": shade, "size": 9, "symbol": [run_pen.symbol(entry) for entry in entries]},
        "hovertext": [run_pen.hover(comparison, entry) for entry in entries],
        "hoverinfo": "text",
        "cliponaxis": False,
    }


def _finding(entries: Sequence[Entry], name: str) -> str:
    """Return the best value drawn, as the title."""
    metric = METRICS_BY_NAME[name]
    if not entries:
        return f"No data for {metric.label}"
    sign, word = (-1, "Lowest") if metric.is_more_better is False else (1, "Highest")
    best = max(entries, key=lambda entry: sign * entry.cell.metrics[name].value)
    return f"{word} {metric.label}, {quantity(best.cell.metrics[name].value, metric.unit)}: {best.label}"
