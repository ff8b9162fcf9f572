"""Import and export of the history: files and pasted lines are previewed before import; one file exports everything."""

import streamlit as st

from engine.errors import EngineError
from engine.exchange.importer import Recognised
from engine.history import INBOX, History
from engine.history.inbox import REFUSED
from engine.history.search import Found
from engine.units import NOT_MEASURED, counted
from engine.workbench import Workbench
from engine.workbench.import_manager import ImportManager
from pages.parts import exports, task_progress
from pages.parts.history import noted, tables, view
from pages.parts.history.tables import Column
from pages.parts.notice import notice
from pages.parts.plain import plain

FILE, PASTED, PASTED_NAME, BEGUN = "history_file", "history_pasted", "pasted lines", "history_begun"
"""Session state keys: the first counts the imported files, the last is the URL at which this tab began the import."""

AT_ONCE_S, REFRESH_S = 1.0, 0.5
"""Seconds: imports that take no longer than the first are waited for."""

ENDINGS = ("zip", "json", "jsonl", "csv", "sql", "log", "txt", "parquet", "trial")
MOST_MB, MOST_PASTED = 200, 1_000_000
"""Megabytes of a file, characters of a text: the server holds several copies of the latter while the page is open."""
MOST_REFUSALS = 3
COLUMNS = {
    "run": Column("run"), "cell": Column("configuration"), "samples": Column("samples"), "id": Column("id"),
    **noted.COLUMNS,
}  # fmt: skip


def settle(importing: ImportManager) -> None:
    """Open the result of this tab's finished import, unless the person has moved on; call before anything is drawn."""
    if importing.running is None and (begun := st.session_state.pop(BEGUN, None)) is not None:
        _ended(importing, is_waited_for=begun == st.query_params.to_dict())


def show(bench: Workbench, history: History) -> None:
    """Draw import (choose or paste, preview, import) and the export of everything as one file; call inside a row."""
    help = "Every run and trial for another workbench, as Parquet and JSON in one file."
    exports.link("Export all", help, {}, is_quiet=True)
    _import(bench, history)


def _import(bench: Workbench, history: History) -> None:
    bench.importer.warm()
    with st.popover("Import", icon=":material/upload:", type="tertiary", key="history_import", width="content"):
        st.caption(
            "Runs and trials from another workbench, llama-bench rows, timing logs, candidate lists, Parquet, "
            "or lines such as 235 tokens in 80s."
        )
        st.file_uploader("File", ENDINGS, key=_key(), label_visibility="collapsed", max_upload_size=MOST_MB)
        st.text_area("Or paste lines", key=PASTED, height=96, max_chars=MOST_PASTED)
        given = _given()
        if given is not None:
            _preview(bench, history, *given)


def notice_of_import(bench: Workbench) -> None:
    """Show the progress of the current import, and the result of the last one."""
    if bench.importing.running is not None:
        _progress(bench.importing)
    for name, reason in list(bench.kept.refusals().items())[:MOST_REFUSALS]:
        st.caption(plain(f"{name} in the inbox could not be read and was moved to {INBOX}/{REFUSED}: {reason}"))
    sentence = st.session_state.get(view.NOTICE)
    if sentence:
        st.caption(plain(sentence))


@st.fragment(run_every=REFRESH_S)
def _progress(importing: ImportManager) -> None:
    if importing.running is None:
        st.rerun()
    task_progress.bar(importing.running, "history_import_stop")


def _ended(importing: ImportManager, *, is_waited_for: bool) -> None:
    """Report how the import ended, and open its result if the tab has not moved on."""
    task = importing.last
    if task is None:
        return
    if task.state == "stopped":
        st.session_state[view.NOTICE] = f"{task.error} Nothing was imported."
    elif task.state == "failed":
        st.session_state[view.ERROR] = task.error
    else:
        taken = task.result()
        if is_waited_for and (taken.run_ids or taken.trial_ids):
            view.show("runs" if taken.run_ids else "trials")
        st.session_state[view.NOTICE] = taken.sentence
        st.session_state[FILE], st.session_state[PASTED] = st.session_state.get(FILE, 0) + 1, ""


def _given() -> tuple[str, bytes] | None:
    """Return name and content of the file, else of the pasted text."""
    file = st.session_state.get(_key())
    if file is not None:
        return file.name, file.getvalue()
    pasted = st.session_state.get(PASTED, "")
    return (PASTED_NAME, pasted.encode()) if pasted.strip() else None


def _key() -> str:
    """Return the uploader's key; a new key empties it."""
    return f"{FILE}_{st.session_state.get(FILE, 0)}"


def _preview(bench: Workbench, history: History, name: str, data: bytes) -> None:
    try:
        found = _recognised(bench, name, data)
    except EngineError as error:
        notice(error)
        return
    st.caption(f"{plain(found.label)} · {counted(found.num, 'row')}")
    rows = Found.of(found.preview, found.num)
    table = tables.frame(rows.rows, tables.columns_of(rows, COLUMNS, has_all=True))
    st.dataframe(table, hide_index=True, placeholder=NOT_MEASURED, alt="Preview of the import")
    st.button(
        "Import", key="history_take_in", on_click=view.act,
        args=(lambda: _take_in(bench.importing, history, name, data),),
    )  # fmt: skip


@st.cache_data(max_entries=4, show_spinner=False)
def _recognised(_bench: Workbench, name: str, data: bytes) -> Recognised:
    return _bench.importer.recognise(name, data)


def _take_in(importing: ImportManager, history: History, name: str, data: bytes) -> None:
    importing.take_in(history, name, data)
    importing.wait(AT_ONCE_S)
    st.session_state[BEGUN] = st.query_params.to_dict()
