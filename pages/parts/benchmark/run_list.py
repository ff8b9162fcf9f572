"""List of the newest runs: opens any of them, offers a new plan, and imports files of other tools."""

from functools import partial

import streamlit as st

from engine.bench.planning.plan import Question
from engine.runs import RunRecord, RunSummary
from engine.units import counted
from engine.workbench import Workbench
from pages.parts.benchmark import run_state
from pages.parts.notice import undo_row
from pages.parts.plain import plain
from pages.parts.units import moment

FILE = "run_file"
KINDS = ("zip", "json", "jsonl", "csv", "sql", "log", "txt")
NAME_WIDTH, SENTENCE_WIDTH = 32, 36


def show(bench: Workbench, question: Question, run: RunRecord | None) -> None:
    """Draw the list, with the buttons for a new plan and for import."""
    runs = run_state.recent(bench)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption("Recent runs" if runs else "No runs yet.", width="content")
        if run is not None:
            st.button(
                "New plan", icon=":material/add:", type="tertiary", key="run_new", on_click=run_state.show_plan,
                args=(question,),
            )  # fmt: skip
        _import(bench)
    with st.container(gap=None):
        for one in runs:
            is_shown = run is not None and run.id == one.id
            st.button(
                _label(one), key=f"run_open_{one.id}", type="secondary" if is_shown else "tertiary",
                on_click=run_state.show_run, args=(one.id,),
            )  # fmt: skip


def interrupted(bench: Workbench, run: RunRecord | None) -> None:
    """Draw the runs that were interrupted when the program ended and can be continued."""
    for one in run_state.interrupted(bench):
        if run is None or run.id != one.id:
            name = plain(one.name or run_state.ASKED.get(one.question, one.question), NAME_WIDTH)
            with st.container(horizontal=True, vertical_alignment="center", gap="small"):
                message = f"{name} was interrupted after {counted(one.num_samples, 'sample')} and can be continued."
                st.caption(message, width="content")
                st.button(
                    "Open", key=f"run_interrupted_{one.id}", type="tertiary", on_click=run_state.show_run,
                    args=(one.id,),
                )  # fmt: skip


def undo(bench: Workbench) -> None:
    """Offer to undo this tab's last deletion of a run."""
    if st.session_state.get(run_state.DELETED):
        undo_row("The run was deleted.", "run_undo", partial(run_state.undelete, bench))


def _label(one: RunSummary) -> str:
    """Return the name of a run and, in grey, its sentence, status and time."""
    name = plain(one.name or run_state.ASKED.get(one.question, one.question), NAME_WIDTH)
    status = "" if one.status == "done" else one.status
    facts = [plain(one.sentence, SENTENCE_WIDTH), status, moment(one.created_at)]
    return f"{name} :gray[{' · '.join(fact for fact in facts if fact)}]"


def _import(bench: Workbench) -> None:
    with st.popover("Import", icon=":material/upload:", key="run_import", type="tertiary"):
        st.caption("A run from another workbench, llama-bench results, or a timing log.")
        st.file_uploader("File", KINDS, key=FILE, label_visibility="collapsed")
        st.button(
            "Import", key="run_take_in", disabled=st.session_state.get(FILE) is None, on_click=_take_in,
            args=(bench,),
        )  # fmt: skip


def _take_in(bench: Workbench) -> None:
    file = st.session_state[FILE]
    run_state.act(lambda: run_state.show_run(bench.bench.import_file(file.name, file.getvalue())))
