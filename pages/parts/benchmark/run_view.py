"""View of a run that has ended: its sentence, figures, charts, configurations, limits and next actions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import streamlit as st

from engine.bench.analysis import series
from engine.bench.analysis.explanation import explanation
from engine.bench.analysis.scatter import Scatter, scatter_of
from engine.bench.analysis.summary import CellSummary, Summary, summarise
from engine.errors import EngineError
from engine.models import read_model
from engine.runs import RunRecord
from engine.samples import METRICS_BY_NAME
from engine.workbench import Workbench
from pages.parts import address
from pages.parts.benchmark import (
    answers,
    embedding_view,
    limits_view,
    on_nodes,
    run_actions,
    run_charts,
    run_state,
    run_table,
)
from pages.parts.benchmark.run_facts import facts
from pages.parts.plain import plain
from pages.parts.units import moment

METRIC, BASELINE = "run_metric_", "run_baseline_"
CHOICES_WIDTH = 576  # of both together: they share what is narrower
ENDED = {"stopped": "stopped", "interrupted": "interrupted", "failed": "failed", "running": "running", "done": ""}


def show(bench: Workbench, run: RunRecord, edit: run_actions.Edit) -> None:
    """Draw a run; `edit` puts its plan on the screen."""
    metric, baseline = _judged(run)
    state = (run.id, run.status, len(run.samples), int(run.samples["is_replaced"].sum()))
    summary = _summarised(state, metric, baseline, run)
    st.caption(_origin(run, summary))
    advice = series.advice(run, summary)
    answers.show(answers.answer(run, summary, advice.cell), summary)
    answers.adjust(run)
    _as_good(run, summary)
    on_nodes.beside(bench, run, summary.main_metric)
    run_actions.show(bench, run, summary, advice, edit)
    run_charts.show(run, summary, summary.main_metric, (state, metric, baseline))
    noise = scatter_of(run.samples, summary.main_metric)
    _noise(summary, noise)
    _terms(run, summary, noise)
    _choices(run, summary)
    chosen = summary.cell(run_table.show(summary, run.id))
    if chosen is not None:
        run_actions.of_cell(bench, run, chosen)
    if run.question == "embedding":
        embedding_view.notes()
    else:
        limits_view.show(bench, run, _limited(summary, advice.cell))
    _machine(run)


def _noise(summary: Summary, noise: Scatter) -> None:
    """Draw the two kinds of noise apart: what disturbed samples from outside, and how far they vary by themselves."""
    kinds = {"Disturbed from outside": summary.disturbance.sentence, "Varying by itself": noise.sentence}
    with st.container(gap=None):
        for name, sentence in kinds.items():
            if sentence:
                st.caption(f"**{name}** · {plain(sentence)}")


def _terms(run: RunRecord, summary: Summary, noise: Scatter) -> None:
    """Draw the words of the page with their meaning in this run."""
    terms = explanation(run, summary, noise)
    if terms:
        with st.expander("How to read this", key="run_terms"):
            for term in terms:
                st.markdown(f"**{term.name}** · {plain(term.text)}")


def _judged(run: RunRecord) -> tuple[str | None, int | None]:
    """Return metric and baseline: those of the URL if the run has them, else those of the run's outcome."""
    metric, baseline = st.query_params.get("metric"), st.query_params.get("baseline", "")
    is_measured = metric in METRICS_BY_NAME and bool(np.isfinite(run.samples[metric]).any())
    numbers = {str(cell.number): cell.number for cell in run.cells}
    return metric if is_measured else run.outcome.get("metric"), numbers.get(baseline, run.outcome.get("default"))


@st.cache_resource(max_entries=16, show_spinner=False)
def _summarised(state: tuple[object, ...], metric: str | None, baseline: int | None, _run: RunRecord) -> Summary:
    """Summarise a run; under another metric or baseline than its own, its stored outcome and sentence do not apply."""
    is_own = (metric, baseline) == (_run.outcome.get("metric"), _run.outcome.get("default"))
    return summarise(_run if is_own else replace(_run, outcome={}), main_metric=metric, baseline=baseline)


def _origin(run: RunRecord, summary: Summary) -> str:
    facts = [
        run.name or run_state.ASKED.get(run.question, run.question),
        _model(run.plan.get("model", "")),
        moment(run.created_at),
        "" if run.origin == "measured" else f"from {run.origin}",
        summary.disturbance.samples,
        ENDED[run.status],
    ]
    return " · ".join(plain(fact) for fact in facts if fact)


@st.cache_data(max_entries=64, show_spinner=False)
def _model(path: str) -> str:
    """Return the name of the file that was measured; a synthetic one, of random weights, is marked."""
    try:
        is_synthetic = bool(path) and read_model(path).is_synthetic
    except EngineError:
        is_synthetic = False
    return Path(path).name + (" (synthetic)" if is_synthetic else "")


def _limited(summary: Summary, number: int | None) -> CellSummary | None:
    """Return the configuration whose limits are shown: the recommended one, else the fastest."""
    measured = series.measured(summary, summary.main_metric)
    return summary.cell(number) or (series.best_of(measured, summary.main_metric) if measured else None)


def _as_good(run: RunRecord, summary: Summary) -> None:
    """Show the flat optimum of a search: settings that are as good as the best."""
    labels = {cell.number: cell.label for cell in summary.cells}
    flat = [labels[number] for number in run.outcome.get("flat", ()) if number in labels]
    if len(flat) > 1:
        st.caption(plain(f"Equivalent within 2 %, least memory first: {', '.join(flat)}."))


def _choices(run: RunRecord, summary: Summary) -> None:
    """Draw the choice of the metric and of the baseline for the verdicts."""
    measured = [name for name in METRICS_BY_NAME if any(name in cell.metrics for cell in summary.cells)]
    labels = {cell.number: cell.label for cell in summary.cells if cell.metrics}
    if len(labels) < 2:
        return
    with st.container(width=CHOICES_WIDTH):
        of_metric, of_baseline = st.columns([3, 4], gap="small")
        of_metric.selectbox(
            "Metric", measured, format_func=lambda name: METRICS_BY_NAME[name].label,
            **address.bound("metric", METRIC + run.id, summary.main_metric),
        )  # fmt: skip
        of_baseline.selectbox(
            "Baseline", list(labels), format_func=labels.__getitem__,
            **address.bound("baseline", BASELINE + run.id, summary.baseline),
        )  # fmt: skip


def _machine(run: RunRecord) -> None:
    """Draw the machine and the versions that the run was measured with."""
    with st.expander("Machine and versions", key="run_machine"):
        rows = [{"property": name, "value": value} for name, value in facts(run).items()]
        st.dataframe(rows, hide_index=True, alt="Machine and versions of the run")
