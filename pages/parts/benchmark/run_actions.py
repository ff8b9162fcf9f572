"""Actions on a run that has ended: use, continue, compare, copy, export, rename, delete."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import streamlit as st

from engine.bench.analysis import series
from engine.bench.analysis.explanation import baseline_role
from engine.bench.analysis.rounds import round_s
from engine.bench.analysis.summary import CellSummary, Summary
from engine.bench.planning.engines import POOL, TRANSFORMERS
from engine.bench.planning.plan import Plan
from engine.reference import REFERENCE
from engine.runs import CLUSTER, RunRecord
from engine.units import counted, duration
from engine.workbench import Workbench
from engine.workbench.bench_manager import CONNECTING, WAITING
from pages.parts.benchmark import on_nodes, run_state, task_button
from pages.parts.plain import plain

NAME = "run_name_"
NAME_CHARACTERS = 200
MOST_TIMES = 6
"""Times the rounds of a plan beyond which more of them are not the first thing to do, so small is the difference."""
DOWNLOADS = {
    "run": ("Complete run, ZIP", "run.zip", "application/zip"),
    "csv": ("Samples, CSV", "csv", "text/csv"),
    "llama-bench": ("llama-bench, JSONL", "jsonl", "application/jsonl"),
    "sidecar": ("Rest of the run, JSON", "json", "application/json"),
}
OF_ANY_RUN = ("run", "csv")
"""The DOWNLOADS that embedding runs offer too."""

Edit = Callable[[Plan], None]


def show(bench: Workbench, run: RunRecord, summary: Summary, advice: series.Advice, edit: Edit) -> None:
    """Draw the row of buttons; the first is the page's one primary button. `edit` shows a plan."""
    is_free = bench.bench.running is None
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        _next(bench, run, summary, advice, is_free)
        if run.plan:
            st.button(
                "Edit plan", icon=":material/tune:", key="run_edit", on_click=run_state.act,
                args=(lambda: _edit(run, edit),),
            )  # fmt: skip
            again = on_nodes.again(bench, run)
            st.button(
                "Run again", icon=":material/replay:", key="run_again",
                disabled=not (is_free and again.is_free), on_click=again.press, help=plain(again.help) or None,
            )  # fmt: skip
        st.page_link(
            "compare.py", label="Compare with…", icon=":material/compare_arrows:", query_params={"runs": run.id}
        )
        with st.popover("Copy as Markdown", icon=":material/content_copy:", key="run_markdown"):
            st.code(summary.to_markdown().rstrip(), language="markdown", wrap_lines=True)
        with st.popover("Download", icon=":material/download:", key="run_download"):
            _downloads(bench, run)
        if run.origin != REFERENCE:
            with st.popover("More", icon=":material/more_horiz:", key="run_manage"):
                _manage(bench, run)
    task_button.show(bench, WAITING, *([CONNECTING] if run.origin.startswith(CLUSTER) else []))


def of_cell(bench: Workbench, run: RunRecord, cell: CellSummary) -> None:
    """Draw the actions on a configuration that was chosen in the table."""
    if not run.plan or not cell.metrics or run.question == "embedding":
        return
    if cell.settings.get("arm", POOL) not in (POOL, TRANSFORMERS):
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(plain(cell.label), width="content")
        if run.origin == "measured":
            _use(bench, run, cell.number, "Use this configuration")
        st.download_button(
            "Profile, JSON", lambda: bench.bench.profile(run.id, cell.number), f"profile-{run.id}-{cell.number}.json",
            "application/json", key="run_profile", icon=":material/download:", type="tertiary", on_click="ignore",
            help="These settings as a file for Pool.from_profile",
        )  # fmt: skip


def _next(bench: Workbench, run: RunRecord, summary: Summary, advice: series.Advice, is_free: bool) -> None:
    """Draw the most likely next step for a run that was measured on this machine."""
    if run.origin != "measured":
        return
    if run.status in ("stopped", "interrupted"):
        st.button(
            "Continue", type="primary", icon=":material/play_arrow:", key="run_resume", disabled=not is_free,
            on_click=run_state.act, args=(lambda: _resume(bench, run),), help="Keeps the samples so far",
        )  # fmt: skip
    elif advice.is_open and summary.disturbance.is_mostly:
        _when_quiet(bench, run, advice.budget_s)
    elif advice.budget_s:
        _longer(bench, run, advice.budget_s, is_free)
    elif advice.more_rounds:
        is_long = advice.more_rounds > MOST_TIMES * Plan.from_dict(run.plan).rounds
        if is_long and advice.cell is not None and run.question != "embedding":
            _use(bench, run, advice.cell, f"Use the {baseline_role(run, summary)}", is_primary=True)
        _more_rounds(bench, run, advice.more_rounds, is_free, is_primary=not is_long)
    elif advice.cell is not None and run.question == "embedding":
        _embed_with(run, advice.cell)
    elif advice.cell is not None:
        _use(bench, run, advice.cell, "Use these settings", is_primary=True)


def _more_rounds(bench: Workbench, run: RunRecord, more: int, is_free: bool, *, is_primary: bool) -> None:
    """Draw a button that runs as many more rounds as are probably needed for a verdict."""
    time = more * round_s(run.samples)
    label = f"Run {counted(more, 'more round')}" + (f" · about {duration(time)}" if time == time else "")
    st.button(
        label, type="primary" if is_primary else "secondary", icon=":material/add:", key="run_more",
        disabled=not is_free, on_click=run_state.act, args=(lambda: _add_rounds(bench, run, more),),
    )  # fmt: skip


def _add_rounds(bench: Workbench, run: RunRecord, more: int) -> None:
    plan = bench.bench.with_rounds(run.id, more)
    run_state.launch(bench, plan, lambda confirmed: bench.bench.add_rounds(run.id, more, confirmed=confirmed))


def _resume(bench: Workbench, run: RunRecord) -> None:
    plan = Plan.from_dict(run.plan)
    run_state.launch(bench, plan, lambda confirmed: bench.bench.resume(run.id, confirmed=confirmed))


def _longer(bench: Workbench, run: RunRecord, budget_s: float, is_free: bool) -> None:
    """Draw a button that searches again, for as long as a verdict probably takes."""
    st.button(
        f"Search again for {duration(budget_s)}", type="primary", icon=":material/replay:", key="run_longer",
        disabled=not is_free, on_click=run_state.start, args=(bench, lambda: _given(run, budget_s)),
    )  # fmt: skip


def _given(run: RunRecord, budget_s: float) -> Plan:
    """Return the plan of a run with another time for its search; 0 leaves it."""
    plan = Plan.from_dict(run.plan)
    return replace(plan, budget_s=budget_s or plan.budget_s)


def _when_quiet(bench: Workbench, run: RunRecord, budget_s: float) -> None:
    """Draw a button that measures the same plan again once the machine is quiet."""
    task_button.button(
        bench, "Run again when the machine is quiet", "notifications_paused", "run_when_quiet",
        lambda: _wait_for_quiet(bench, _given(run, budget_s)),
        "Waits until other programs leave the cores idle, then measures the same plan as a new run",
        is_primary=True,
    )  # fmt: skip


def _wait_for_quiet(bench: Workbench, plan: Plan) -> None:
    run_state.launch(bench, plan, lambda confirmed: bench.bench.start_when_quiet(plan, confirmed=confirmed))


def _embed_with(run: RunRecord, number: int) -> None:
    """Draw a link to the Embeddings page with the model and the backend of a configuration."""
    settings = next(cell.settings for cell in run.cells if cell.number == number)
    asked = {name: str(settings[name]) for name in ("model", "backend") if name in settings}
    st.page_link("embeddings.py", label="Embed with these settings", icon=":material/check:", query_params=asked)


def _use(bench: Workbench, run: RunRecord, cell: int, label: str, *, is_primary: bool = False) -> None:
    st.button(
        label, type="primary" if is_primary else "secondary", icon=":material/check:", key=f"run_use_{is_primary}",
        on_click=run_state.act, args=(lambda: bench.bench.use(run.id, cell),),
        help="Saves these settings as this model's profile and reloads it with them",
    )  # fmt: skip


def _downloads(bench: Workbench, run: RunRecord) -> None:
    for kind, (label, ending, mime) in DOWNLOADS.items():
        if run.question == "embedding" and kind not in OF_ANY_RUN:
            continue
        st.download_button(
            label, partial(bench.bench.export, run.id, kind), f"run-{run.id}.{ending}", mime,
            key=f"run_download_{kind}", type="tertiary", on_click="ignore",
        )  # fmt: skip


def _manage(bench: Workbench, run: RunRecord) -> None:
    """Draw the controls to rename or delete the run."""
    key = NAME + run.id
    st.text_input("Name", run.name, key=key, max_chars=NAME_CHARACTERS)
    st.button(
        "Rename", icon=":material/edit:", key="run_rename", on_click=run_state.act,
        args=(lambda: bench.bench.rename(run.id, st.session_state[key]),),
    )  # fmt: skip
    st.button("Delete", icon=":material/delete:", key="run_delete", on_click=run_state.delete, args=(bench, run))


def _edit(run: RunRecord, edit: Edit) -> None:
    plan = Plan.from_dict(run.plan)
    edit(plan)
    run_state.show_plan(plan.question)
