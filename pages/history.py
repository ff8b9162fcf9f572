"""History page: find runs and trials, put them into reports, rank this machine, query in SQL, import and export."""

import streamlit as st

from engine.errors import EngineError
from engine.history import History
from engine.workbench import Workbench, current
from pages.parts.history import (
    import_export,
    reference_view,
    reports_view,
    runs_view,
    saved,
    sql_view,
    trials_view,
    view,
)
from pages.parts.notice import notice


def heading(bench: Workbench, history: History) -> None:
    """Draw the view selector, with the controls to save a view, to import and to export beside it."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        view.view_control()
        st.space("stretch")
        saved.save_button(history)
        import_export.show(bench, history)


def failures(bench: Workbench) -> None:
    """Show the error of the last failed action, and the result of the last import."""
    error = st.session_state.get(view.ERROR)
    if error is not None:
        notice(error)
    import_export.notice_of_import(bench)


def saved_views(history: History) -> None:
    """Draw the saved views; if they cannot be read, show the reason."""
    try:
        saved.show(history)
    except EngineError as error:
        notice(error)


def content(bench: Workbench, history: History, name: str) -> None:
    """Draw the selected view; if the history cannot be read, show the reason."""
    try:
        if name == "runs":
            runs_view.show(bench, history)
        elif name == "trials":
            trials_view.show(bench, history)
        elif name == "reports":
            reports_view.show(bench, history)
        elif name == "reference":
            reference_view.show(history)
        else:
            sql_view.show(history)
    except EngineError as error:
        notice(error)


bench = current()
st.title("History", anchor=False)
import_export.settle(bench.importing)
name = view.open_view()
if bench.history is None:
    notice(bench.history_error or "The history is being opened.")
else:
    heading(bench, bench.history)
    failures(bench)
    saved_views(bench.history)
    content(bench, bench.history, name)
