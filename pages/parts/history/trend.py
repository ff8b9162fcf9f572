"""Trend of one configuration: its figure in every run, how much runs vary, changes of version and notes."""

import numpy as np
import pandas as pd
import streamlit as st

from engine.bench.analysis import trends
from engine.bench.analysis.trends import Trend
from engine.errors import ConfigError, EngineError
from engine.history import History
from engine.history.reports import Block
from engine.runs import RunRecord
from engine.samples import METRICS_BY_NAME, main_metrics
from engine.stats import Interval
from engine.workbench import Workbench
from pages.parts import address
from pages.parts.benchmark import charts, verdict_columns
from pages.parts.history import reports_view, selection, tables, trend_chart, view
from pages.parts.labels import distinct
from pages.parts.notice import notice
from pages.parts.plain import plain
from pages.parts.units import local_time

METRIC, CELL, DEFAULT = "history_metric", "history_cell", "tokens_per_s"


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
    charts.draw(trend_chart.chart(found, metric), "history_trend_chart")
    reports_view.add_button(history, [Block(kind="trend", of=f"{run.id}.{cell}", metric=metric)])
    _points(history, found, metric)


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
    return next((name for name in main_metrics(run.question) if np.isfinite(samples[name]).any()), DEFAULT)


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


def _points(history: History, found: Trend, metric: str) -> None:
    """Draw the runs of the chart as a table whose names open them; a selected one can be given a note."""
    newest_first = found.points[::-1]
    table = {
        "when": [local_time(point.created_at) for point in newest_first],
        "run": [point.name or tables.EMPTY for point in newest_first],
        **verdict_columns.measured(
            METRICS_BY_NAME[metric],
            [Interval(point.value, point.low, point.high, len(point.by_round)) for point in newest_first],
        ),
        "rounds": [len(point.by_round) for point in newest_first],
        "note": [point.note for point in newest_first],
        "versions": [
            ", ".join(f"{name} {version}" for name, version in point.versions.items()) for point in newest_first
        ],
    }
    key = "history_trend_runs"
    chosen = tables.draw(pd.DataFrame(table), {}, key, "Runs of this configuration", is_single=True, link="run")
    opened = tables.opened(key)
    for row in chosen:
        with st.container(horizontal=True, gap="small"):
            if st.button("Open the run", type="primary", icon=":material/open_in_new:", key="history_trend_open"):
                opened = row
            selection.note(history, "run", newest_first[row].run_id, newest_first[row].note)
    if opened is not None:
        st.switch_page("benchmark.py", query_params={"run": newest_first[opened].run_id})
