"""Charts of a run, from its summary: the title is the finding, intervals are thin bars, samples dots, limits dashed.

Colours come from Streamlit's own Plotly template, which the browser fills in from its theme as it first draws a chart;
`chart_colours` exchanges them when the theme changes.
"""

import html
import math
from collections.abc import Iterator, Sequence

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from engine.bench.analysis import series
from engine.bench.analysis.explanation import baseline_role
from engine.bench.analysis.scatter import KINDS
from engine.bench.analysis.series import Point
from engine.bench.analysis.summary import CellSummary, Summary
from engine.history import downsampling
from engine.runs import RunRecord
from engine.samples import ENGINES_QUESTION, METRICS_BY_NAME
from engine.units import counted, digits, quantity, scale_of
from pages.parts.benchmark.chart_pen import (
    ACCENT,
    GREY,
    HEIGHT,
    MARKS_OF,
    MOST_DOTS,
    Pen,
    blank,
    legend_below,
    legend_text,
    strokes,
    ticks_at,
)

MOST_CELLS = 40
CONFIG = {"displaylogo": False, "displayModeBar": False}


def draw(figure: go.Figure, key: str) -> None:
    """Put a chart on the page; its title is also its alternative text for screen readers."""
    st.plotly_chart(figure, key=key, config=CONFIG, alt=html.unescape(figure.layout.title.text.replace("<br>", " ")))


def lines(run: RunRecord, summary: Summary, axis: str, axis_label: str, metric: str) -> go.Figure:
    """Draw `metric` by a numeric axis, one line for each combination of the other axes."""
    drawn = series.by_axis(summary, axis, metric)
    best = series.best_of(series.measured(summary, metric), metric)
    value = quantity(best.metrics[metric].value, METRICS_BY_NAME[metric].unit)
    figure = blank(f"Best: {value} with {best.label}", axis_label)
    pen = Pen(figure, run, metric, [point.cell for line in drawn for point in line.points])
    for line, (colour, symbol) in zip(drawn, strokes(len(drawn), is_ordered=_is_ordered(run)), strict=True):
        pen.dots(line.points, colour)
        pen.line(line.points, colour, line.label, symbol=symbol)
    for point, role in _roles(run, [point for line in drawn for point in line.points], best, summary):
        pen.role(point, role, is_above=point.cell is best)
    legend_below(figure)
    ticks_at(figure, (point.x for line in drawn for point in line.points))
    return figure


def scaling(run: RunRecord, found: series.Scaling, metric: str, num_cores: int) -> go.Figure:
    """Draw speed by the threads of one instance, with the ideal line and the number of cores of the machine."""
    figure = blank(found.finding, "threads per instance")
    pen = Pen(figure, run, metric, [point.cell for line in found.lines for point in line.points])
    dashed = {"color": GREY, "dash": "dash", "width": 1.2}
    for number, (line, ideal) in enumerate(zip(found.lines, found.ideal, strict=True)):
        figure.add_scatter(
            x=[point.x for point in line.points], y=[value * pen.scale.factor for value in ideal], mode="lines",
            line=dashed, name="ideal", hoverinfo="skip", showlegend=number == 0,
        )  # fmt: skip
    for line, (colour, symbol) in zip(found.lines, strokes(len(found.lines)), strict=True):
        pen.dots(line.points, colour)
        pen.line(line.points, colour, line.label or METRICS_BY_NAME[metric].label, symbol=symbol)
    threads = sorted({point.x for line in found.lines for point in line.points})
    if threads[-1] > num_cores:
        label = {"text": counted(num_cores, "core"), "font": {"color": GREY}, "textangle": 0, "xanchor": "left"}
        figure.add_vline(x=num_cores, line={"color": GREY, "dash": "dot", "width": 1.2}, label=label)
    figure.update_xaxes(tickvals=threads)
    return figure


def layouts(grid: series.Grid, metric: str) -> go.Figure:
    """Draw a heat map with instances down and threads across, the best value of each layout in its field."""
    figure = blank(grid.finding, "threads per instance")
    values = [[cell.metrics[metric].value if cell else math.nan for cell in row] for row in grid.cells]
    scale = scale_of(METRICS_BY_NAME[metric].unit, float(np.nanmax(values)))
    figure.add_heatmap(
        x=[str(each) for each in grid.threads],
        y=[str(many) for many in grid.instances],
        z=values,
        text=[[digits(value * scale.factor) if math.isfinite(value) else "" for value in row] for row in values],
        texttemplate="%{text}",
        hovertext=[[legend_text(cell, metric) if cell else "not measured" for cell in row] for row in grid.cells],
        hoverinfo="text",
        xgap=3,
        ygap=3,
        showscale=False,
        reversescale=METRICS_BY_NAME[metric].is_more_better is False,
    )
    figure.update_yaxes(title="instances", autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(title=f"threads per instance · cells in {scale.unit}", type="category")
    return figure


def trade_off(run: RunRecord, summary: Summary, axis: str, x_metric: str, metric: str) -> go.Figure:
    """Draw `metric` against another metric, along an axis whose value labels each point."""
    drawn = series.against(summary, axis, x_metric, metric)
    cells = [point.cell for line in drawn for point in line.points]
    best, x_unit = series.best_of(cells, metric), METRICS_BY_NAME[x_metric].unit
    scale = scale_of(x_unit, max(point.x for line in drawn for point in line.points))
    value = quantity(best.metrics[metric].value, METRICS_BY_NAME[metric].unit)
    cost = quantity(best.metrics[x_metric].value, x_unit)
    label = METRICS_BY_NAME[x_metric].label
    figure = blank(f"{value} at {cost} {label}", f"{label}, {scale.unit}")
    pen = Pen(figure, run, metric, cells)
    for line, (colour, symbol) in zip(drawn, strokes(len(drawn), is_ordered=_is_ordered(run)), strict=True):
        marks = [str(point.cell.settings.get(axis, "")) for point in line.points]
        points = [point._replace(x=point.x * scale.factor) for point in line.points]
        pen.line(points, colour, line.label, marks=marks, symbol=symbol)
    figure.update_xaxes(rangemode="tozero")
    return figure


def memory(run: RunRecord, summary: Summary, metric: str) -> go.Figure:
    """Draw `metric` against the memory of all workers.

    The fastest configuration is labelled, and the smallest of those nearly as fast.
    """
    cells = [cell for cell in series.measured(summary, metric) if _memory(cell) > 0]
    best, least = series.best_of(cells, metric), series.least_memory(cells, metric)
    scale = scale_of("B", max(map(_memory, cells)))
    title = f"{best.label}: the best, at {quantity(_memory(best), 'B')}"
    if least is not best:
        title = f"{least.label}: within 5 % of the best, at {quantity(_memory(least), 'B')}"
    figure = blank(title, f"memory of all workers (PSS), {scale.unit}")
    points = [Point(_memory(cell) * scale.factor, cell.metrics[metric], cell) for cell in cells]
    marks = [cell.label if cell is best or cell is least else "" for cell in cells]
    Pen(figure, run, metric, cells).line(points, ACCENT, marks=marks, is_joined=False)
    figure.update_xaxes(rangemode="tozero")
    return figure


def cells(run: RunRecord, summary: Summary, metric: str) -> go.Figure:
    """Draw every configuration with median, interval and samples, the best on top, the baseline as a dashed line."""
    sign = -1 if METRICS_BY_NAME[metric].is_more_better is False else 1
    ranked = sorted(series.measured(summary, metric), key=lambda cell: sign * cell.metrics[metric].value)
    shown = ranked[-MOST_CELLS:]
    left_out = f"; {len(ranked) - len(shown):,} more are in the table" if len(ranked) > len(shown) else ""
    figure = blank(f"{shown[-1].label} is ahead{left_out}", "", height=max(HEIGHT // 2, 96 + 28 * len(shown)))
    pen = Pen(figure, run, metric, shown, is_lying=True)
    points = [Point(place, cell.metrics[metric], cell) for place, cell in enumerate(shown)]
    base = next((point for point in points if point.cell.number == summary.baseline), None)
    if base is not None and len(points) > 1:
        is_left = 2 * base.y.value < max(point.y.value for point in points)
        label = {
            "text": baseline_role(run, summary), "font": {"color": GREY}, "textangle": 0, "textposition": "end",
            "yanchor": "bottom", "xanchor": "left" if is_left else "right",
        }  # fmt: skip
        line = {"color": GREY, "dash": "dash", "width": 1.2}
        figure.add_vline(x=base.y.value * pen.scale.factor, line=line, label=label)
    pen.dots(points, ACCENT)
    pen.line(points, ACCENT, is_joined=False)
    pen.name_places([cell.label for cell in shown])
    legend_below(figure)
    return figure


def strip(run: RunRecord, summary: Summary, metric: str) -> go.Figure:
    """Draw every sample by time, over its configuration's median, to show drift and noise.

    What was disturbed from outside is grey and hollow, what varied by itself a blue diamond. Very many samples are
    downsampled to their extremes.
    """
    found = series.strip(run.samples, metric)
    found = found.at(downsampling.extremes(found.elapsed_min, found.ratio, 2 * found.kind + found.is_counted))
    figure = blank(found.finding, "measuring time, min")
    labels = {cell.number: Pen.text(cell.label) + "<br>" for cell in summary.cells}
    is_labelled = len(found.cell) <= MOST_DOTS
    for number, kind in enumerate(KINDS):
        rows = found.kind == number
        if not rows.any():
            continue
        mark = MARKS_OF[kind]
        figure.add_scattergl(
            x=found.elapsed_min[rows], y=found.ratio[rows], mode="markers", opacity=0.8,
            name=mark.legend_name(is_counted=bool(found.is_counted[rows].any())),
            marker={"color": mark.colour, "size": 7, "symbol": mark.symbol},
            text=[labels.get(cell, "") for cell in found.cell[rows].tolist()] if is_labelled else None,
            hovertemplate=f"{'%{text}' * is_labelled}%{{y:.3f}} × its median<extra></extra>",
        )  # fmt: skip
    figure.add_hline(y=1, line={"color": GREY, "dash": "dash", "width": 1})
    figure.update_yaxes(title="× its median")
    figure.update_layout(showlegend=True)
    legend_below(figure)
    return figure


def _roles(run: RunRecord, points: Sequence[Point], best: CellSummary, summary: Summary) -> Iterator[tuple[Point, str]]:
    """Yield the points of the best configuration and of the control, each with the name of its role."""
    beside = baseline_role(run, summary)
    for point in points if len(points) > 1 else ():
        names = ("best" * (point.cell is best), beside * (point.cell.number == summary.baseline))
        if any(names):
            yield point, ", ".join(name for name in names if name)


def _memory(cell: CellSummary) -> float:
    return cell.metrics["pss_bytes"].value if "pss_bytes" in cell.metrics else math.nan


def _is_ordered(run: RunRecord) -> bool:
    """Return whether lines stand for values in an order, which engines are not."""
    return run.question != ENGINES_QUESTION
