"""History: find every run and trial again, see how this machine stands beside others, ask in SQL, import and export."""

import streamlit as st

from engine.errors import EngineError
from engine.history import History
from engine.workbench import Workbench, current
from pages.parts.history import doors, reference_view, runs_view, sql_view, trials_view, view
from pages.parts.notice import notice


def heading(bench: Workbench, history: History) -> None:
    """The views, and beside them the ways in and out."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        view.view_control()
        doors.show(bench, history)


def failures(bench: Workbench) -> None:
    """What could not be done, and what the import door took in."""
    error = st.session_state.get(view.ERROR)
    if error is not None:
        notice(error)
    doors.told(bench)


def content(bench: Workbench, history: History, name: str) -> None:
    """The view on the screen; where the history cannot be read, the reason."""
    try:
        if name == "runs":
            runs_view.show(bench, history)
        elif name == "trials":
            trials_view.show(bench, history)
        elif name == "reference":
            reference_view.show(history)
        else:
            sql_view.show(history)
    except EngineError as error:
        notice(error)


bench = current()
st.title("History", anchor=False)
doors.settle(bench.importing)
name = view.open_view()
if bench.history is None:
    notice(bench.history_error)
else:
    heading(bench, bench.history)
    failures(bench)
    content(bench, bench.history, name)
