"""Timings noted manually: pasted lines, parsed into a table and saved as a run of their own kind."""

import streamlit as st

from engine.errors import EngineError
from engine.history import History
from engine.reference import NotedTiming, noted_run, read_lines
from engine.units import NOT_MEASURED, counted
from pages.parts.history import tables, view
from pages.parts.history.tables import Column
from pages.parts.notice import notice

LINES, MACHINE, MODEL = "history_lines", "history_machine", "history_model"
MOST_NOTED = 100_000
"""Characters; notes are written manually, so they are short."""
EXAMPLE = "235 tokens in 80s = 2.93 tokens/s (4 threads)"
COLUMNS = {
    "line": Column("line"),
    "tokens_per_s": Column("speed", "tok/s", "tokens / total seconds if both are given, else as noted"),
    "noted_per_s": Column("as noted", "tok/s"),
    "num_tokens": Column("tokens"),
    "seconds": Column("time", "s"),
    "instances": Column("instances"),
    "threads": Column("threads"),
    "memory_gb": Column("memory", "GB"),
    "label": Column("other text"),
    "remark": Column("remark"),
}


def show(history: History) -> None:
    """Draw the form; the table appears below it as the lines are parsed."""
    with st.expander("Your own notes", icon=":material/edit:", key="history_noted"):
        with st.container(horizontal=True, gap="small"):
            st.text_input("Machine", key=MACHINE, placeholder="c7i.4xlarge", persist_state="session")
            st.text_input("Model", key=MODEL, placeholder="Mistral-7B Q4_K_M", persist_state="session")
        st.text_area("Lines", key=LINES, height=120, max_chars=MOST_NOTED, placeholder=EXAMPLE, persist_state="session")
        timings = _read()
        if timings:
            rows = [{**timing._asdict(), "tokens_per_s": timing.tokens_per_s} for timing in timings]
            table = tables.frame(rows, COLUMNS)
            st.dataframe(table, hide_index=True, placeholder=NOT_MEASURED, alt="Parsed lines")
        st.button(
            "Save as noted by hand", icon=":material/save:", key="history_save_noted", on_click=view.act,
            disabled=not timings or not st.session_state[MACHINE].strip(), args=(lambda: _save(history, timings),),
            help="Needs lines and a machine name.",
        )  # fmt: skip


def _read() -> tuple[NotedTiming, ...]:
    if not st.session_state[LINES].strip():
        return ()
    try:
        return read_lines(st.session_state[LINES])
    except EngineError as error:
        notice(error)
        return ()


def _save(history: History, timings: tuple[NotedTiming, ...]) -> None:
    machine = st.session_state[MACHINE].strip()
    is_new = history.runs.keep(noted_run(timings, machine=machine, model=st.session_state[MODEL].strip()))
    what = f"{counted(len(timings), 'timing')} of {machine}"
    st.session_state[view.NOTICE] = f"{what}: saved as noted by hand." if is_new else f"{what}: already saved."
    st.session_state[LINES] = ""
