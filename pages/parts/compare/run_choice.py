"""Selection of the compared runs and configurations, the metric and the baseline; all of it is in the URL."""

from collections.abc import Mapping, Sequence

import numpy as np
import streamlit as st

from engine.bench.analysis.comparison import Comparison
from engine.bench.analysis.entries import key_of
from engine.errors import EngineError
from engine.reference import reference_runs
from engine.runs import RunRecord, RunSummary
from engine.samples import METRICS_BY_NAME
from engine.units import counted
from engine.workbench import Workbench
from pages.parts import address
from pages.parts.benchmark.run_state import ASKED
from pages.parts.labels import distinct
from pages.parts.notice import notice
from pages.parts.units import moment

KEPT = "compare_runs_kept"
RUNS, CELLS, BASELINE, METRIC = "compare_runs", "compare_cells", "compare_baseline", "compare_y"
EVERY_CELL = "all"
OPENING = 2
MOST_RUNS, MOST_CELLS = 20, 200


def open_runs(bench: Workbench) -> list[RunRecord]:
    """Return the runs in the URL, else those this tab compared last, else the newest; missing runs are reported."""
    if "runs" not in st.query_params:
        st.query_params.from_dict(st.session_state.get(KEPT, {"runs": ""}))
    st.session_state[KEPT] = st.query_params.to_dict()
    asked = list(dict.fromkeys(filter(None, st.query_params["runs"].split(","))))
    if len(asked) > MOST_RUNS:
        st.caption(f"The first {MOST_RUNS} of {len(asked):,} runs are compared.")
    try:
        found = [bench.bench.run(run_id) for run_id in asked[:MOST_RUNS] or _opening(bench)]
    except EngineError as error:
        notice(error)
        return []
    runs = [run for run in found if run is not None]
    if len(runs) < len(found):
        missing = counted(len(found) - len(runs), "run")
        notice(f"{missing} in the URL cannot be compared: deleted or never saved here. Add others below.")
    return runs


def wanted_cells(runs: Sequence[RunRecord]) -> tuple[str, ...] | None:
    """Return the keys of the configurations in the URL; None if it leaves the choice open."""
    text = st.query_params.get("cells", "")
    if text != EVERY_CELL:
        return tuple(filter(None, text.split(",")))[:MOST_CELLS] or None
    keys = [key_of(run.id, cell) for run in runs for cell in np.unique(run.samples["cell"]).tolist()]
    return tuple(keys[:MOST_CELLS])


def pick_runs(bench: Workbench, runs: Sequence[RunRecord]) -> None:
    """Draw the runs as removable chips; the newest runs and the reference machines can be added."""
    try:
        recent = bench.bench.recent()
    except EngineError as error:
        notice(error)
        recent = []
    offered: list[RunRecord | RunSummary] = [*runs, *recent, *reference_runs()]
    labels = distinct({run.id: _label(run) for run in offered})
    st.session_state[RUNS] = [run.id for run in runs]
    st.multiselect(
        "Runs", list(labels), format_func=labels.__getitem__, key=RUNS, on_change=_take_runs,
        max_selections=MOST_RUNS, select_all=False, placeholder="Add a run or a reference machine",
    )  # fmt: skip


def pick_cells(comparison: Comparison) -> None:
    """Draw the choice of the configurations, the metric, and the baseline among those measured."""
    labels = distinct(comparison.offered)
    st.session_state[CELLS] = [entry.key for entry in comparison.entries]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        shown = f"{len(comparison.entries):,} of {counted(len(labels), 'configuration')}"
        with st.popover(shown, icon=":material/checklist:", key="compare_choose"):
            st.multiselect(
                "Configurations", list(labels), format_func=labels.__getitem__, key=CELLS, on_change=_take_cells,
                args=(len(labels),), max_selections=MOST_CELLS, width=480,
            )  # fmt: skip
        if comparison.entries:
            _judged(comparison, labels)


def _judged(comparison: Comparison, labels: Mapping[str, str]) -> None:
    st.selectbox(
        "Metric", comparison.measured, width=240, format_func=lambda name: METRICS_BY_NAME[name].label,
        **address.bound("y", METRIC, comparison.main_metric),
    )  # fmt: skip
    if comparison.baseline is not None:
        st.selectbox(
            "Baseline", _able(comparison), width=420, format_func=labels.__getitem__,
            **address.bound("baseline", BASELINE, comparison.baseline),
        )  # fmt: skip


def _able(comparison: Comparison) -> list[str]:
    """Return the keys of the entries that can be the baseline."""
    metric = comparison.main_metric
    return [entry.key for entry in comparison.entries if metric in entry.cell.metrics and not entry.is_noted]


def _opening(bench: Workbench) -> list[str]:
    """Return the default runs: the newest, then reference machines if there are too few."""
    newest: list[RunRecord | RunSummary] = [*bench.bench.recent(), *reference_runs()]
    return [run.id for run in newest[:OPENING]]


def _label(run: RunRecord | RunSummary) -> str:
    """Return the name of a run, with the time of its measurement or its origin."""
    name = run.name or ASKED.get(run.question, run.question)
    return f"{name} · {moment(run.created_at) if run.origin == 'measured' else run.origin}"


def _take_runs() -> None:
    """Write the chosen runs to the URL; the choice of configurations is reset, and so is a baseline of another run."""
    chosen = st.session_state[RUNS]
    st.query_params["runs"] = ",".join(chosen)
    if st.query_params.get("cells") != EVERY_CELL:
        address.put("cells", "")
    if st.query_params.get("baseline", "").partition(".")[0] not in chosen:
        address.put("baseline", "")


def _take_cells(num_offered: int) -> None:
    chosen = st.session_state[CELLS]
    address.put("cells", EVERY_CELL if len(chosen) == num_offered else ",".join(chosen))
