"""Trend of one configuration: its figure in every run, and where llama.cpp or the workbench changed version."""

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from engine.bench.analysis import trends
from engine.bench.analysis.trends import Trend
from engine.errors import ConfigError, EngineError
from engine.history import History, downsampling
from engine.runs import RunRecord, TrendPoint
from engine.samples import MAIN_METRICS, METRICS_BY_NAME
from engine.stats import Interval
from engine.units import Scale, between, counted, quantity, scale_of
from engine.workbench import Workbench
from pages.parts import address
from pages.parts.benchmark import charts
from pages.parts.benchmark.chart_pen import ACCENT, GREY, Pen, bars, blank
from pages.parts.history import tables, view
from pages.parts.labels import distinct
from pages.parts.notice import notice
from pages.parts.plain import plain
from pages.parts.units import local_time

METRIC, CELL, DEFAULT = "history_metric", "history_cell", "tokens_per_s"
LEAST_MARGIN = timedelta(hours=6)
"""Minimum margin before the first and after the last run, so that a single run is shown at a day's scale."""


def show(bench: Workbench, history: History) -> None:
    """Draw the trend in the URL: the sentence first, then the chart, then its figures."""
    asked = view.part("metric")
    try:
        run, cell = _configuration(bench, view.part("trend"))
        metric = asked if asked in METRICS_BY_NAME else _usual(run, cell)
        points = history.find.trend(run.id, cell, metric)
    except EngineError as error:
        _controls(None, 0, DEFAULT)
        notice(error)
        return
    _controls(run, cell, metric)
    if not points:
        st.caption(f"{METRICS_BY_NAME[metric].label.capitalize()} was not measured for this configuration.")
        return
    found = trends.trend(points, metric)
    st.subheader(plain(found.sentence), anchor=False)
    charts.draw(chart(found, metric), "history_trend_chart")
    _points(found, metric)


def _configuration(bench: Workbench, text: str) -> tuple[RunRecord, int]:
    """Return the run and the number of the configuration that `text` names, such as "0199….3"."""
    run_id, _, number = text.rpartition(".")
    run = bench.bench.run(run_id)
    if run is None:
        raise ConfigError("The URL names a run that does not exist: it was deleted or never saved. Choose another one.")
    if number not in [str(cell.number) for cell in run.cells]:
        raise ConfigError(f"This run has no configuration {number[:20]!r}: choose one of its {len(run.cells)}.")
    return run, int(number)


def _usual(run: RunRecord, cell: int) -> str:
    """Return the first of the main metrics that a configuration has."""
    samples = run.samples[run.samples["cell"] == cell]
    return next((name for name in MAIN_METRICS if np.isfinite(samples[name]).any()), DEFAULT)


def _controls(run: RunRecord | None, cell: int, metric: str) -> None:
    """Draw the Back button, and the choice of the run's configuration and of the metric."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.button(
            "All runs", icon=":material/arrow_back:", type="tertiary", key="history_back",
            on_click=lambda: view.put(trend="", metric=""),
        )  # fmt: skip
        if run is None:
            return
        st.session_state[CELL] = cell
        labels = distinct({each.number: each.label or "the only configuration" for each in run.cells})
        st.selectbox(
            "Configuration", list(labels), key=CELL, label_visibility="collapsed", width=320,
            format_func=labels.__getitem__, on_change=lambda: view.put(trend=f"{run.id}.{st.session_state[CELL]}"),
        )  # fmt: skip
        st.selectbox(
            "Metric", list(METRICS_BY_NAME), label_visibility="collapsed", width=240,
            format_func=lambda name: METRICS_BY_NAME[name].label, **address.bound("metric", METRIC, metric),
        )  # fmt: skip


def chart(found: Trend, metric: str) -> go.Figure:
    """Draw every run as a dot with its interval, other machines in grey; dashed lines mark version changes.

    Very many runs are downsampled to their extremes.
    """
    unit = METRICS_BY_NAME[metric].unit
    scale = scale_of(unit, max(point.value for point in found.points))
    first, newest = found.points[0], found.points[-1]
    figure = blank(
        f"{quantity(newest.value, unit)} in the newest of {counted(len(found.points), 'run')}", "", height=360
    )
    margin = max((newest.created_at - first.created_at) / 20, LEAST_MARGIN)
    figure.update_xaxes(range=[local_time(first.created_at - margin), local_time(newest.created_at + margin)])
    figure.update_yaxes(title=f"{METRICS_BY_NAME[metric].label}, {scale.unit}", rangemode="tozero")
    is_here = [point.machine_hash == newest.machine_hash for point in found.points]
    places = [point.created_at.timestamp() for point in found.points]
    rows = downsampling.extremes(places, [point.value for point in found.points], is_here).tolist()
    for name, colour, is_same in (("other machines", GREY, False), ("same machine", ACCENT, True)):
        points = [found.points[row] for row in rows if is_here[row] is is_same]
        if points:
            _line(figure, points, scale, unit, name, colour)
    for change in filter(lambda each: each.what, found.changes):
        figure.add_vline(
            x=local_time(change.when), line={"color": GREY, "dash": "dash", "width": 1.2},
            label={
                "text": Pen.text(change.what), "font": {"color": GREY}, "textangle": -90, "textposition": "top right",
            },
        )  # fmt: skip
    figure.update_layout(showlegend=len(figure.data) > 1)
    return figure


def _line(figure: go.Figure, points: Sequence[TrendPoint], scale: Scale, unit: str, name: str, colour: str) -> None:
    intervals = [Interval(point.value, point.low, point.high, len(point.by_round)) for point in points]
    figure.add_scatter(
        x=[local_time(point.created_at) for point in points],
        y=[point.value * scale.factor for point in points],
        error_y=bars(intervals, scale, colour),
        mode="lines+markers" if colour == ACCENT else "markers",
        name=name, marker={"color": colour, "size": 8}, line={"color": colour, "width": 2},
        hovertext=[_told(point, unit) for point in points], hoverinfo="text", cliponaxis=False,
    )  # fmt: skip


def _told(point: TrendPoint, unit: str) -> str:
    """Return the hover text of a run."""
    versions = ", ".join(f"{name} {version}" for name, version in point.versions.items())
    lines = [
        f"<b>{quantity(point.value, unit)}</b>",
        between(point.low, point.high, unit, point.value),
        f"{local_time(point.created_at):%-d %b %Y %H:%M}",
        Pen.text(versions, 120),
    ]
    return "<br>".join(line for line in lines if line)


def _points(found: Trend, metric: str) -> None:
    """Draw the runs of the chart as a table that can open each of them."""
    unit = METRICS_BY_NAME[metric].unit
    newest_first = found.points[::-1]
    rows = [
        {
            "when": local_time(point.created_at),
            METRICS_BY_NAME[metric].label: quantity(point.value, unit),
            "95 %": between(point.low, point.high, unit, point.value),
            "rounds": len(point.by_round),
            "versions": ", ".join(f"{name} {version}" for name, version in point.versions.items()),
        }
        for point in newest_first
    ]
    table = pd.DataFrame(rows)
    for row in tables.draw(table, {}, "history_trend_runs", "Runs of this configuration", is_single=True):
        if st.button("Open the run", type="primary", icon=":material/open_in_new:", key="history_trend_open"):
            st.switch_page("benchmark.py", query_params={"run": newest_first[row].run_id})
