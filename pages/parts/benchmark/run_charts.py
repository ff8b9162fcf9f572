"""Charts of a run behind tabs, the one that answers its question first."""

import math
from collections.abc import Callable, Hashable
from functools import partial

import plotly.graph_objects as go
import streamlit as st

from engine.bench.analysis import series
from engine.bench.analysis.capacity import capacity
from engine.bench.analysis.entries import heading
from engine.bench.analysis.quantisations import has_quantisations, quantisations
from engine.bench.analysis.summary import Summary
from engine.bench.analysis.time_breakdown import time_breakdown
from engine.errors import ConfigError
from engine.machine.cores import num_cores
from engine.runs import RunRecord
from pages.parts import address
from pages.parts.benchmark import answer_charts, answers, charts, embedding_view, quantisation_chart

CHART, ALL, BY_TIME = "run_chart", "All configurations", "Samples by time"
LARGE, KEPT = 460, 32
"""Least height of a chart in pixels, and number of charts that are kept."""
OF_FILES = "Quantisations"
"""Chart that is made anew each time: its files may come and go."""

Make = Callable[[], go.Figure]


def show(run: RunRecord, summary: Summary, metric: str, state: Hashable) -> None:
    """Draw one chart in large, chosen by tabs whose first one answers the question; only the open chart is made.

    state: what `summary` was made from; the same chart of the same state is made once.
    """
    found = available(run, summary, metric)
    if not found:
        return
    asked = st.query_params.get("chart")
    opened = address.bound("chart", CHART, asked if asked in found else next(iter(found)))
    for name, tab in zip(found, st.tabs(list(found), **opened), strict=True):
        if tab.open:
            with tab:
                wanted = answers.objective_of(run) if run.question == "users" else None
                key = (state, metric, name, wanted)
                figure = _large(found[name]) if name == OF_FILES else _figure(key, found[name])
                charts.draw(figure, f"run_chart_{name}")


@st.cache_resource(max_entries=KEPT, show_spinner=False)
def _figure(key: tuple[object, ...], _make: Make) -> go.Figure:
    """Return the chart of a key, which nothing changes afterwards: to make one takes longer than the rest of a page."""
    return _large(_make)


def _large(make: Make) -> go.Figure:
    figure = make()
    figure.update_layout(height=max(LARGE, figure.layout.height))
    return figure


def available(run: RunRecord, summary: Summary, metric: str) -> dict[str, Make]:
    """Return chart factories by tab name, the most useful for this run first; empty without samples."""
    cells = series.measured(summary, metric)
    if not cells:
        return {}
    found: dict[str, Make] = {**_answers(run, summary, metric)}
    axes = series.numeric_axes(cells)
    if run.question == "settings" or (run.question == "engines" and not axes):
        found[ALL] = partial(charts.cells, run, summary, metric)
    grid, threads = series.layouts(summary, metric), series.scaling(summary, metric)
    for axis in axes:
        label = heading(axis)
        found[f"By {label.lower()}"] = partial(charts.lines, run, summary, axis, label, metric)
    if threads is not None:
        found["Threads"] = lambda: charts.scaling(run, threads, metric, num_cores())
    if grid is not None:
        found["Layouts"] = lambda: charts.layouts(grid, metric)
    for name, x_metric in (("Against latency", "tpot_s"), ("Against first token", "ttft_s")):
        if axes and metric not in ("tpot_s", "ttft_s") and any(x_metric in cell.metrics for cell in cells):
            found[name] = partial(charts.trade_off, run, summary, axes[0], x_metric, metric)
    if len(cells) > 1 and any("pss_bytes" in cell.metrics for cell in cells):
        found["Memory"] = lambda: charts.memory(run, summary, metric)
    found.setdefault(ALL, partial(charts.cells, run, summary, metric))
    found |= _bars(run)
    found[BY_TIME] = partial(charts.strip, run, summary, metric)
    return found


def _answers(run: RunRecord, summary: Summary, metric: str) -> dict[str, Make]:
    """Return the chart specific to the run's question, if it has one."""
    if run.question == "embedding":
        return _embedding(run, summary, metric)
    if run.question == "users":
        wanted = answers.objective_of(run)
        try:
            found = capacity(run, wanted)
        except ConfigError:  # no number of users was measured, as the run's sentence states
            return {}
        return {"Users": lambda: answer_charts.users(found, wanted)}
    if has_quantisations(run):
        files = quantisations(run)
        is_known = sum(math.isfinite(file.size.num_bytes) for file in files.files) > 1
        return {OF_FILES: lambda: quantisation_chart.quantisations(files)} if is_known else {}
    return _bars(run) if run.question == "python" else {}


def _embedding(run: RunRecord, summary: Summary, metric: str) -> dict[str, Make]:
    if not embedding_view.has_agreement(summary):
        return {}
    return {"Speed and agreement": lambda: embedding_view.speed_and_agreement(run, summary, metric)}


def _bars(run: RunRecord) -> dict[str, Make]:
    found = time_breakdown(run)
    return {"Where the time goes": lambda: answer_charts.time_breakdown(found)} if found.bars else {}
