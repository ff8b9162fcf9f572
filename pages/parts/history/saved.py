"""Saved views: filter sets under a name, opened by one click, renamed, deleted with undo."""

from functools import partial

import streamlit as st

from engine.history import History
from engine.history.saved_views import NAME_CHARACTERS, SavedView
from pages.parts.history import view
from pages.parts.notice import undo_row
from pages.parts.plain import plain

CHOSEN, NAME, NEW_NAME, DELETED = "history_saved", "history_saved_name", "history_saved_new", "history_saved_deleted"
TEMPORARY = ("page", "edit")
"""Query parameters that are no part of a view."""


def show(history: History) -> None:
    """Draw the saved views, the open one chosen, and the undo of the last deletion; nothing if there are none."""
    found = {one.name: one for one in history.views.all()}
    here = open_view(found)
    if found:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.session_state[CHOSEN] = here
            st.pills(
                "Saved views", list(found), key=CHOSEN, format_func=plain, label_visibility="collapsed",
                on_change=_open, args=(found,),
            )  # fmt: skip
            if here is not None:
                _change(history, found[here])
    _undo(history)


def open_view(found: dict[str, SavedView]) -> str | None:
    """Return the name of the saved view that is on the screen, None if it is none of them."""
    return next((name for name, one in found.items() if one.query == _query()), None)


def save_button(history: History) -> None:
    """Draw the button that saves what is on the screen under a name; call inside a row."""
    with st.popover("Save view", icon=":material/bookmark_add:", type="tertiary", key="history_save_view"):
        st.text_input("Name of this view", key=NEW_NAME, max_chars=NAME_CHARACTERS, placeholder="Last week, 7 B")
        st.button(
            "Save", key="history_save_view_now", disabled=not st.session_state[NEW_NAME].strip(), on_click=view.act,
            args=(lambda: _save(history),), help="Keeps filters, dates and order, and replaces a view of this name.",
        )  # fmt: skip


def _query() -> dict[str, str]:
    return {name: text for name, text in st.query_params.to_dict().items() if name not in TEMPORARY}


def _save(history: History) -> None:
    history.views.save(st.session_state[NEW_NAME], _query())
    st.session_state[NEW_NAME] = ""


def _open(found: dict[str, SavedView]) -> None:
    name = st.session_state[CHOSEN]
    if name in found:
        view.go(dict(found[name].query))


def _change(history: History, one: SavedView) -> None:
    with st.popover("Edit view", icon=":material/edit:", type="tertiary", key="history_edit_view"):
        key = NAME + one.name
        st.text_input(
            "Name", one.name, key=key, max_chars=NAME_CHARACTERS, on_change=view.act,
            args=(lambda: history.views.rename(one.name, st.session_state[key]),),
        )  # fmt: skip
        st.button(
            "Delete view", icon=":material/delete:", key="history_delete_view", on_click=view.act,
            args=(lambda: _delete(history, one),),
        )  # fmt: skip


def _delete(history: History, one: SavedView) -> None:
    if history.views.delete(one.name):
        st.session_state[DELETED] = one


def _undo(history: History) -> None:
    deleted: SavedView | None = st.session_state.get(DELETED)
    if deleted is not None:
        restore = partial(view.act, lambda: history.views.restore(st.session_state.pop(DELETED)))
        undo_row(f"The view {plain(deleted.name)} was deleted.", "history_undo_view", restore)
