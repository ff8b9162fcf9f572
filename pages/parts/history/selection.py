"""Actions on the selected rows: open, compare, mark, export, delete."""

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import streamlit as st

from engine.bench.analysis.entries import key_of
from engine.history import History
from engine.history.marks import Kind
from engine.history.reports import Block, BlockKind
from engine.units import counted
from engine.workbench import Workbench
from pages.parts import exports
from pages.parts.history import by_meaning, reports_view, view
from pages.parts.notice import undo_row

KEY = "history_do_"
KINDS: dict[Kind, BlockKind] = {"run": "run", "trial": "trial"}
"""Parts of a report by what the rows are."""


class Chosen(NamedTuple):
    """The selected rows, of runs, their configurations or trials; `kind` is run or trial."""

    kind: Kind
    rows: Sequence[dict[str, Any]]

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the runs or trials, each once."""
        return tuple(dict.fromkeys(str(row.get("id") or row["run_id"]) for row in self.rows))

    @property
    def key(self) -> str:
        """A key for this exact selection, for the widgets that belong to it."""
        return hashlib.sha256(" ".join(self.ids).encode()).hexdigest()[:12]


def show(bench: Workbench, history: History, chosen: Chosen) -> None:
    """Draw the buttons; if nothing is selected, a caption names them."""
    if not chosen.rows:
        st.caption("Click a name to open it. Select rows to compare, tag, export or delete them.")
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        _open(chosen)
        _compare(chosen)
        if chosen.kind == "trial" and len(chosen.ids) == 1:
            by_meaning.like_button(*chosen.ids)
        _mark(history, chosen, "is_starred", history.marks.star, ("Star", "star"), ("Unstar", "star_border"))
        _tags(history, chosen)
        if len(chosen.ids) == 1:
            note(history, chosen.kind, chosen.ids[0], chosen.rows[0].get("note") or "")
        _mark(history, chosen, "is_archived", history.marks.archive, ("Archive", "archive"), ("Unarchive", "unarchive"))
        reports_view.add_button(history, [Block(kind=KINDS[chosen.kind], of=id) for id in chosen.ids])
        _export(chosen)
        _delete(bench, chosen)


def undo(bench: Workbench) -> None:
    """Show the last deletion and offer to undo it."""
    deleted: view.Deleted | None = st.session_state.get(view.DELETED)
    if deleted is not None:
        verb = "was" if len(deleted.ids) == 1 else "were"
        message = f"{counted(len(deleted.ids), deleted.kind)} {verb} deleted."
        undo_row(message, "history_undo", partial(view.act, lambda: _restore(bench)))


def _open(chosen: Chosen) -> None:
    if len(chosen.ids) != 1:
        return
    label = f"Open the {chosen.kind}"
    if st.button(label, type="primary", icon=":material/open_in_new:", key=f"{KEY}open"):
        page = {"run": "benchmark.py", "trial": "prompt_lab.py"}[chosen.kind]
        st.switch_page(page, query_params={str(chosen.kind): chosen.ids[0]})


def _compare(chosen: Chosen) -> None:
    """Draw a button that compares runs, exactly the selected configurations, or trials side by side."""
    if len(chosen.rows) < 2:
        return
    keys = [key_of(row["run_id"], row["cell"]) for row in chosen.rows if "cell" in row]
    asked = {f"{chosen.kind}s": ",".join(chosen.ids)} | ({"cells": ",".join(keys)} if keys else {})
    kind: Literal["primary", "secondary"] = "primary" if len(chosen.ids) > 1 else "secondary"
    if st.button("Compare", type=kind, icon=":material/compare_arrows:", key=f"{KEY}compare"):
        st.switch_page("compare.py", query_params=asked)


def _mark(
    history: History,
    chosen: Chosen,
    name: str,
    mark: Callable[[Kind, Sequence[str], bool], object],
    on: tuple[str, str],
    off: tuple[str, str],
) -> None:
    """Draw a button that marks all rows, or removes the mark if all have it."""
    is_on = all(row.get(name) for row in chosen.rows)
    label, icon = off if is_on else on
    st.button(
        label, icon=f":material/{icon}:", key=KEY + name, on_click=view.act,
        args=(lambda: mark(chosen.kind, chosen.ids, not is_on),),
    )  # fmt: skip


def _tags(history: History, chosen: Chosen) -> None:
    """Draw the tags that all rows have; adding or removing one applies to each row."""
    common = set.intersection(*(set(row.get("tags") or ()) for row in chosen.rows))
    with st.popover("Tags", icon=":material/sell:", key=f"{KEY}tags_of"):
        key = f"{KEY}tags_{chosen.key}"
        st.session_state[key] = sorted(common)
        st.multiselect(
            "Tags", sorted({*history.marks.tags(), *common}), key=key, accept_new_options=True,
            on_change=_retag, args=(history, chosen, common, key), placeholder="Select or type a tag",
        )  # fmt: skip


def _retag(history: History, chosen: Chosen, before: set[str], key: str) -> None:
    after = set(st.session_state[key])
    view.act(
        lambda: history.marks.tag(chosen.kind, chosen.ids, add=sorted(after - before), remove=sorted(before - after))
    )


def note(history: History, kind: Kind, id: str, text: str) -> None:
    """Draw the note of a run or a trial, to read and to change."""
    with st.popover("Note", icon=":material/notes:", key=f"{KEY}note_of"):
        key = f"{KEY}note_{id}"
        st.text_area(
            "Note", value=text, key=key, width=360, on_change=view.act,
            args=(lambda: history.marks.note(kind, id, st.session_state[key]),),
        )  # fmt: skip


def _export(chosen: Chosen) -> None:
    of_kind = {f"{chosen.kind}s": chosen.ids}
    exports.link("Export", "For another workbench: Parquet and JSON in one file", of_kind)


def _delete(bench: Workbench, chosen: Chosen) -> None:
    """Delete after confirmation; it can be undone until the history is next opened."""
    what = counted(len(chosen.ids), chosen.kind)
    with st.popover("Delete", icon=":material/delete:", key=f"{KEY}delete_of"):
        st.caption(f"Delete {what}? You can undo this until the workbench restarts.")
        st.button(f"Delete {what}", key=f"{KEY}delete", on_click=view.act, args=(lambda: _remove(bench, chosen),))


def _remove(bench: Workbench, chosen: Chosen) -> None:
    deleted: list[str] = []
    try:
        for each in chosen.ids:
            bench.bench.delete(each) if chosen.kind == "run" else bench.trials.delete(each)
            deleted.append(each)
    finally:
        if deleted:
            st.session_state[view.DELETED] = view.Deleted(chosen.kind, tuple(deleted))


def _restore(bench: Workbench) -> None:
    deleted: view.Deleted | None = st.session_state.pop(view.DELETED, None)
    if deleted is not None:
        for each in deleted.ids:
            bench.bench.restore(each) if deleted.kind == "run" else bench.trials.restore(each)
