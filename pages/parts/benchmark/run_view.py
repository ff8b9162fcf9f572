"""A run that has ended: one sentence to act on, its figures, charts, cells, what limits it, and what to do next."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import streamlit as st

from engine.bench.findings import series
from engine.bench.findings.rounds import round_s
from engine.bench.findings.summary import CellSummary, Summary, summarise
from engine.bench.planning.plan import Plan
from engine.errors import EngineError
from engine.models import read_model
from engine.runs import RunRecord
from engine.samples import METRICS_BY_NAME
from engine.units import counted, duration
from engine.workbench import Workbench
from pages.parts.benchmark import answers, limits_view, run_charts, run_table, sweep
from pages.parts.plain import plain
from pages.parts.units import moment

METRIC, BASELINE = "run_metric_", "run_baseline_"
ENDED = {"stopped": "stopped", "interrupted": "interrupted", "failed": "failed", "running": "running", "done": ""}
DOWNLOADS = {
    "run": ("Everything", "run.zip", "application/zip"),
    "csv": ("Samples, CSV", "csv", "text/csv"),
    "llama-bench": ("llama-bench, JSONL", "jsonl", "application/jsonl"),
    "sidecar": ("What those rows leave out, JSON", "json", "application/json"),
}


def show(bench: Workbench, run: RunRecord, edit: Callable[[Plan], None]) -> None:
    """Draw a run; `edit` puts its plan on the screen."""
    metric = st.session_state.get(METRIC + run.id, run.outcome.get("metric"))
    baseline = st.session_state.get(BASELINE + run.id, run.outcome.get("default"))
    key = (run.id, run.status, len(run.samples), int(run.samples["is_replaced"].sum()), metric, baseline)
    summary = _summarised(key, run)
    st.caption(_origin(run, summary))
    advice = series.advice(run, summary)
    answers.show(answers.answer(run, summary, advice.cell))
    answers.adjust(run)
    _actions(bench, run, summary, advice, edit)
    _as_good(run, summary)
    run_charts.show(run, summary, summary.main_metric)
    _choices(run, summary)
    chosen = run_table.show(summary)
    _chosen(bench, run, summary, chosen)
    limits_view.show(bench, run, _limited(summary, advice.cell))
    _machine(run)


@st.cache_resource(max_entries=16, show_spinner=False)
def _summarised(key: tuple[object, ...], _run: RunRecord) -> Summary:
    """By another metric or against another cell than the run itself, its own sentence does not hold."""
    *_, metric, baseline = key
    is_own = (metric, baseline) == (_run.outcome.get("metric"), _run.outcome.get("default"))
    return summarise(_run if is_own else replace(_run, outcome={}), main_metric=metric, baseline=baseline)


def _origin(run: RunRecord, summary: Summary) -> str:
    num_flagged = sum(cell.num_flagged for cell in summary.cells)
    facts = [
        run.name or sweep.ASKED.get(run.question, run.question),
        _model(run.plan.get("model", "")),
        moment(run.created_at),
        "" if run.origin == "measured" else f"from {run.origin}",
        counted(len(run.samples), "sample") + (f", {num_flagged:,} of them disturbed" if num_flagged else ""),
        ENDED[run.status],
    ]
    return " · ".join(plain(fact) for fact in facts if fact)


@st.cache_data(max_entries=64, show_spinner=False)
def _model(path: str) -> str:
    """The file that was measured; one of random weights is marked."""
    try:
        is_synthetic = bool(path) and read_model(path).is_synthetic
    except EngineError:
        is_synthetic = False
    return Path(path).name + (" (synthetic)" if is_synthetic else "")


def _actions(
    bench: Workbench, run: RunRecord, summary: Summary, advice: series.Advice, edit: Callable[[Plan], None]
) -> None:
    """What to do next; the first of them is the page's one primary button."""
    is_free = bench.bench.running is None
    is_open = run.status in ("stopped", "interrupted") and run.origin == "measured"
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if is_open:
            st.button(
                "Continue", type="primary", icon=":material/play_arrow:", key="run_resume", disabled=not is_free,
                on_click=sweep.act, args=(lambda: bench.bench.resume(run.id),), help="What was measured stays",
            )  # fmt: skip
        elif advice.more_rounds and run.origin == "measured":
            _more_rounds(bench, run, advice.more_rounds, is_free)
        elif advice.cell is not None and run.origin == "measured":
            _use(bench, run, advice.cell, "Use these settings", is_primary=True)
        if run.plan:
            st.button(
                "Change the plan", icon=":material/tune:", key="run_edit", on_click=sweep.act,
                args=(lambda: _edit(run, edit),),
            )  # fmt: skip
            st.button(
                "Run again", icon=":material/replay:", key="run_again", disabled=not is_free, on_click=sweep.start,
                args=(bench, lambda: Plan.from_dict(run.plan)),
            )  # fmt: skip
        with st.popover("Copy as Markdown", icon=":material/content_copy:", key="run_markdown"):
            st.code(summary.to_markdown().rstrip(), language="markdown", wrap_lines=True)
        with st.popover("Download", icon=":material/download:", key="run_download"):
            for kind, (label, ending, mime) in DOWNLOADS.items():
                st.download_button(
                    label, lambda kind=kind: bench.bench.export(run.id, kind), f"run-{run.id}.{ending}", mime,
                    key=f"run_download_{kind}", type="tertiary", on_click="ignore",
                )  # fmt: skip


def _limited(summary: Summary, number: int | None) -> CellSummary | None:
    """The cell whose limits are told: the one to use, else the fastest."""
    chosen = next((cell for cell in summary.cells if cell.number == number), None)
    measured = series.measured(summary, summary.main_metric)
    return chosen or (series.best_of(measured, summary.main_metric) if measured else None)


def _as_good(run: RunRecord, summary: Summary) -> None:
    """The flat optimum of a search: settings that are as good as the best."""
    labels = {cell.number: cell.label for cell in summary.cells}
    flat = [labels[number] for number in run.outcome.get("flat", ()) if number in labels]
    if len(flat) > 1:
        st.caption(plain(f"The same within 2 %, least memory first: {', '.join(flat)}."))


def _more_rounds(bench: Workbench, run: RunRecord, more: int, is_free: bool) -> None:
    """Run as many rounds as would probably tell."""
    time = more * round_s(run.samples)
    label = f"Run {counted(more, 'more round')}" + (f" · about {duration(time)}" if time == time else "")
    st.button(
        label, type="primary", icon=":material/add:", key="run_more", disabled=not is_free, on_click=sweep.act,
        args=(lambda: bench.bench.add_rounds(run.id, more),),
    )  # fmt: skip


def _use(bench: Workbench, run: RunRecord, cell: int, label: str, *, is_primary: bool = False) -> None:
    st.button(
        label, type="primary" if is_primary else "secondary", icon=":material/check:", key=f"run_use_{is_primary}",
        on_click=sweep.act, args=(lambda: bench.bench.use(run.id, cell),),
        help="Keeps them as a profile of this model, and loads it with them",
    )  # fmt: skip


def _edit(run: RunRecord, edit: Callable[[Plan], None]) -> None:
    plan = Plan.from_dict(run.plan)
    edit(plan)
    sweep.show_plan(plan.question)


def _choices(run: RunRecord, summary: Summary) -> None:
    """By which metric the cells are judged, and against which of them."""
    measured = [name for name in METRICS_BY_NAME if any(name in cell.metrics for cell in summary.cells)]
    labels = {cell.number: cell.label for cell in summary.cells if cell.metrics}
    if len(labels) < 2:
        return
    with st.container(horizontal=True, gap="small"):
        st.selectbox(
            "Judged by", measured, index=measured.index(summary.main_metric), key=METRIC + run.id, width=240,
            format_func=lambda name: METRICS_BY_NAME[name].label,
        )  # fmt: skip
        numbers = list(labels)
        st.selectbox(
            "Compared with", numbers, index=numbers.index(summary.baseline) if summary.baseline in labels else 0,
            key=BASELINE + run.id, width=320, format_func=labels.__getitem__,
        )  # fmt: skip


def _chosen(bench: Workbench, run: RunRecord, summary: Summary, number: int | None) -> None:
    """What can be done with a cell chosen in the table."""
    cell = next((cell for cell in summary.cells if cell.number == number), None)
    if cell is None or run.origin != "measured" or not cell.metrics:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(plain(cell.label), width="content")
        _use(bench, run, cell.number, "Use this one")


def _machine(run: RunRecord) -> None:
    """Where and with what it was measured."""
    with st.expander("Machine and versions", key="run_machine"):
        rows = {**run.machine, **run.versions}
        st.dataframe(
            [{"what": name, "value": str(value)} for name, value in rows.items()], hide_index=True,
            alt="Machine and versions of the run",
        )  # fmt: skip
