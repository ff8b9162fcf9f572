"""Reports: the list of them, and one of them to read, to edit or to download as a file."""

from collections.abc import Sequence
from functools import partial

import pandas as pd
import streamlit as st

from engine.errors import EngineError, sentence
from engine.history import History
from engine.history.reports import NAME_CHARACTERS, TEXT_CHARACTERS, Block, Report
from engine.units import counted
from engine.workbench import Workbench
from pages.parts.benchmark.charts import draw
from pages.parts.history import tables, view
from pages.parts.history.report_file import report_html
from pages.parts.history.report_parts import Part, paragraphs, part_of
from pages.parts.notice import notice, undo_row
from pages.parts.plain import plain
from pages.parts.token_strip import token_strip
from pages.parts.units import local_time

KEY, DELETED = "history_report_", "history_report_deleted"
UNNAMED = "Report"
STRIP_HEIGHT = 360
EXPLAINED = "A report puts chosen charts and trials on one page, with your text between them."


def show(bench: Workbench, history: History) -> None:
    """Draw the report in the URL, else the list of all."""
    _undo(history)
    id = view.part("report")
    if not id:
        _list(history)
        return
    report = history.reports.report(id)
    if report is None:
        _back()
        notice("This report does not exist: it was deleted or never saved.")
        return
    is_edited = view.part("edit") == "1"
    _head(bench, history, report, is_edited)
    for number, block in enumerate(report.blocks):
        with st.container(key=f"{KEY}block_{number}", gap="small", border=is_edited):
            if is_edited:
                _edit(history, report, number)
            if block.kind != "text":
                _part(bench, history, block, number)
            elif not is_edited:
                _text(block)
    if is_edited:
        _more(history, report)
    elif not report.blocks:
        st.caption("This report is empty. Press Edit to write, or select rows among the runs or trials to add them.")


def add_button(history: History, blocks: Sequence[Block]) -> None:
    """Draw the button that adds these parts to a report, or to a new one, and opens it; call inside a row."""
    with st.popover("To report", icon=":material/post_add:", key=f"{KEY}to"):
        known = {report.id: report.name for report in history.reports.all()}
        st.selectbox(
            "Report", ["", *known], key=f"{KEY}chosen", width=280,
            format_func=lambda id: known.get(id, "New report"),
        )  # fmt: skip
        st.button(
            "Add", key=f"{KEY}add", on_click=view.act,
            args=(lambda: _add(history, st.session_state[f"{KEY}chosen"], blocks),),
        )  # fmt: skip


def _add(history: History, id: str, blocks: Sequence[Block]) -> None:
    if id:
        history.reports.add(id, blocks)
    else:
        id = history.reports.create(UNNAMED, blocks).id
    view.go({"view": "reports", "report": id, "edit": "1"})


def _list(history: History) -> None:
    found = history.reports.all()
    if not found:
        st.caption(f"No reports yet. {EXPLAINED}")
    st.button(
        "New report", icon=":material/add:", key=f"{KEY}new", type="secondary" if found else "primary",
        on_click=view.act, args=(lambda: _add(history, "", ()),),
    )  # fmt: skip
    if found:
        rows = [{"when": local_time(one.changed_at), "report": one.name, "parts": len(one.blocks)} for one in found]
        key = f"{KEY}list"
        chosen = tables.draw(pd.DataFrame(rows), {}, key, "Reports", is_single=True, link="report")
        opened = tables.opened(key)
        opened = chosen[0] if chosen else opened
        if opened is not None:
            view.go({"view": "reports", "report": found[opened].id})
            st.rerun()


def _back() -> None:
    st.button(
        "All reports", icon=":material/arrow_back:", type="tertiary", key=f"{KEY}back",
        on_click=lambda: view.put(report="", edit=""),
    )  # fmt: skip


def _head(bench: Workbench, history: History, report: Report, is_edited: bool) -> None:
    """Draw the name, and the buttons to edit, download and delete the report."""
    if not is_edited:
        st.subheader(plain(report.name), anchor=False)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        _back()
        if is_edited:
            key = f"{KEY}name_{report.id}"
            st.text_input(
                "Name", report.name, key=key, max_chars=NAME_CHARACTERS, label_visibility="collapsed", width=320,
                on_change=view.act, args=(lambda: history.reports.rename(report.id, st.session_state[key]),),
            )  # fmt: skip
        st.button(
            "Done" if is_edited else "Edit", icon=f":material/{'check' if is_edited else 'edit'}:", key=f"{KEY}edit",
            on_click=partial(view.put, edit="" if is_edited else "1"),
        )  # fmt: skip
        st.download_button(
            "HTML page", partial(report_html, bench, history, report), f"report-{report.id}.html", "text/html",
            icon=":material/download:", key=f"{KEY}file", on_click="ignore",
            help="One file that opens in any browser, without a network.",
        )  # fmt: skip
        st.button(
            "Delete", icon=":material/delete:", type="tertiary", key=f"{KEY}delete", on_click=view.act,
            args=(lambda: _delete(history, report),),
        )  # fmt: skip


def _delete(history: History, report: Report) -> None:
    if history.reports.delete(report.id):
        view.put(report="", edit="")
        st.session_state[DELETED] = report


def _undo(history: History) -> None:
    deleted: Report | None = st.session_state.get(DELETED)
    if deleted is not None:
        restore = partial(view.act, lambda: history.reports.restore(st.session_state.pop(DELETED).id))
        undo_row(f"The report {plain(deleted.name)} was deleted.", f"{KEY}undo", restore)


def _text(block: Block) -> None:
    for is_heading, words in paragraphs(block.text):
        if is_heading:
            st.markdown(f"### {plain(words)}")
        else:
            st.markdown("  \n".join(map(plain, words.split("\n"))))


def _part(bench: Workbench, history: History, block: Block, number: int) -> None:
    try:
        part = part_of(bench, history, block)
    except EngineError as error:
        st.caption(plain(sentence(error)))
        return
    _title(part, number)
    st.caption(plain(part.facts))
    if part.figure is not None:
        draw(part.figure, f"{KEY}chart_{number}")
    if part.trial is not None:
        token_strip(part.trial.id, key=f"{KEY}strip_{number}", height=STRIP_HEIGHT, k=bench.settings.shown_top_k)


def _title(part: Part, number: int) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown(f"### {plain(part.title)}", width="content")
        if st.button("Open", icon=":material/open_in_new:", type="tertiary", key=f"{KEY}open_{number}"):
            st.switch_page(part.page, query_params={part.query[0]: part.query[1]})


def _edit(history: History, report: Report, number: int) -> None:
    """Draw the controls of one part: its text, its place, and its removal."""
    block, last = report.blocks[number], len(report.blocks) - 1
    if block.kind == "text":
        # The place is part of the key, so that a moved text is not written over another one.
        key = f"{KEY}text_{number}_{report.changed_at.timestamp()}"
        st.text_area(
            "Text", block.text, key=key, max_chars=TEXT_CHARACTERS, height=140,
            help="An empty line begins a paragraph, a line that begins with # a heading.",
            on_change=view.act,
            args=(lambda: _put_text(history, report, number, st.session_state[key]),),
        )  # fmt: skip
    with st.container(horizontal=True, gap="xsmall"):
        for label, icon, to in (("Up", "arrow_upward", number - 1), ("Down", "arrow_downward", number + 1)):
            st.button(
                label, icon=f":material/{icon}:", key=f"{KEY}{icon}_{number}", type="tertiary",
                disabled=not 0 <= to <= last, on_click=view.act,
                args=(partial(history.reports.move, report.id, number, block, to),),
            )  # fmt: skip
        st.button(
            "Remove", icon=":material/close:", key=f"{KEY}remove_{number}", type="tertiary", on_click=view.act,
            args=(partial(history.reports.remove, report.id, number, block),),
        )  # fmt: skip


def _put_text(history: History, report: Report, number: int, text: str) -> None:
    history.reports.put(report.id, number, report.blocks[number], Block(kind="text", text=text))


def _more(history: History, report: Report) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.button(
            "Add text", icon=":material/notes:", key=f"{KEY}add_text", on_click=view.act,
            args=(lambda: history.reports.add(report.id, [Block(kind="text")]),),
        )  # fmt: skip
        st.caption(
            f"{counted(len(report.blocks), 'part')}. To add charts and trials, select rows among the runs or trials "
            "and press To report.", width="content",
        )  # fmt: skip
