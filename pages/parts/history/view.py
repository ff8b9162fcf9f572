"""State of the History page between reruns: the view on the screen, stored in the URL, and the buttons' results."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import streamlit as st

from engine.history.filters import Filter
from engine.history.marks import Kind
from pages.parts import address
from pages.parts.notice import attempt

CONTROL, ROWS, KEPT = "history_view", "history_rows", "history_kept"
ERROR, NOTICE, DELETED = "history_error", "history_notice", "history_deleted"
VIEWS = {"runs": "Runs", "trials": "Trials", "reports": "Reports", "reference": "Reference", "sql": "SQL"}
FILTERS = tuple(Filter.__dataclass_fields__)


class Deleted(NamedTuple):
    """The last deletion, for Undo; `kind` is run or trial."""

    kind: Kind
    ids: tuple[str, ...]


def open_view() -> str:
    """Return the view in the URL, else the one this tab showed last, else the runs."""
    kept: dict[str, dict[str, str]] = st.session_state.setdefault(KEPT, {})
    asked = st.query_params.to_dict() or (kept[next(reversed(kept))] if kept else {})
    name = asked.get("view", "")
    name = name if name in VIEWS else next(iter(VIEWS))
    _go({**asked, "view": name})
    kept.pop(name, None)
    kept[name] = {**asked, "view": name}
    st.session_state[CONTROL] = name
    return name


def view_control() -> None:
    """Draw the choice of a view; each opens as it was left."""
    st.segmented_control(
        "View", VIEWS, format_func=VIEWS.__getitem__, key=CONTROL, required=True, on_change=_choose,
        label_visibility="collapsed",
    )  # fmt: skip


def rows(choices: Mapping[str, str]) -> str:
    """Return what the rows of the list are, the first choice by default."""
    return part("rows") if part("rows") in choices else next(iter(choices))


def rows_control(choices: Mapping[str, str]) -> None:
    """Draw the choice of what the rows of the list are; call inside a row."""
    st.session_state[ROWS] = rows(choices)
    st.selectbox(
        "Rows", choices, format_func=choices.__getitem__, key=ROWS, label_visibility="collapsed", width=160,
        on_change=lambda: put(rows=st.session_state[ROWS], order="", page=""),
    )  # fmt: skip


def part(name: str) -> str:
    """Return one query parameter, empty if the URL lacks it."""
    return st.query_params.get(name, "")


def put(**parts: str) -> None:
    """Change query parameters, removing empty ones; call in a callback."""
    _forget()
    for name, text in parts.items():
        address.put(name, text)


def go(query: dict[str, str]) -> None:
    """Open what these query parameters describe; call in a callback."""
    _forget()
    _go(query)


def show(name: str) -> None:
    """Open another view; call in a callback."""
    _forget()
    _go({"view": name})


def asked() -> Filter:
    """Return the filter in the URL. Raises ConfigError if it cannot be read."""
    return Filter.from_query(st.query_params.to_dict())


def ask(wanted: Filter) -> None:
    """Set another filter and show its first page; call in a callback."""
    _forget()
    others = {name: text for name, text in st.query_params.to_dict().items() if name not in (*FILTERS, "page")}
    _go({**others, **wanted.to_query()})


def act(action: Callable[[], object]) -> None:
    """Run the action of a button; a failure is shown on the page."""
    _forget()
    attempt(ERROR, action)


def _choose() -> None:
    name = st.session_state[CONTROL]
    _forget()
    _go(st.session_state[KEPT].get(name, {"view": name}))


def _forget() -> None:
    """Clear the messages of the last action."""
    st.session_state[ERROR] = st.session_state[NOTICE] = None


def _go(parts: dict[str, str]) -> None:
    if st.query_params.to_dict() != parts:
        st.query_params.from_dict(parts)
