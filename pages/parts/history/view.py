"""What the History page holds between reruns: the view on the screen, which is its address, and what buttons did."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import streamlit as st

from engine.history.filters import Filter
from engine.history.marks import Kind
from pages.parts import address
from pages.parts.notice import attempt

CONTROL, ROWS, KEPT = "history_view", "history_rows", "history_kept"
ERROR, TOLD, DELETED = "history_error", "history_told", "history_deleted"
VIEWS = {"runs": "Runs", "trials": "Trials", "reference": "Reference", "sql": "SQL"}
FILTERS = tuple(Filter.__dataclass_fields__)


class Deleted(NamedTuple):
    """What was deleted last, so that it can be taken back; kind: run or trial."""

    kind: Kind
    ids: tuple[str, ...]


def open_view() -> str:
    """The view of the address, else the one this tab showed last, else the runs."""
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
    """The four views; each opens as it was left."""
    st.segmented_control(
        "View", VIEWS, format_func=VIEWS.__getitem__, key=CONTROL, required=True, on_change=_choose,
        label_visibility="collapsed",
    )  # fmt: skip


def rows_control(choices: Mapping[str, str]) -> str:
    """What the rows of a view are, the first by default; gives the name of the choice."""
    default = next(iter(choices))
    rows = part("rows") if part("rows") in choices else default
    st.session_state[ROWS] = rows
    st.segmented_control(
        "Rows", choices, format_func=choices.__getitem__, key=ROWS, required=True, label_visibility="collapsed",
        on_change=lambda: put(rows=st.session_state[ROWS], order="", page=""),
    )  # fmt: skip
    return rows


def part(name: str) -> str:
    """One part of the address, empty where it has none."""
    return st.query_params.get(name, "")


def put(**parts: str) -> None:
    """Change parts of the address, an empty one leaves it; in a callback."""
    _forget()
    for name, text in parts.items():
        address.put(name, text)


def show(name: str) -> None:
    """Open another view; in a callback."""
    _forget()
    _go({"view": name})


def asked() -> Filter:
    """What the address asks for. Raises ConfigError where it cannot be read."""
    return Filter.from_query(st.query_params.to_dict())


def ask(wanted: Filter) -> None:
    """Ask for something else, from its first page on; in a callback."""
    _forget()
    others = {name: text for name, text in st.query_params.to_dict().items() if name not in (*FILTERS, "page")}
    _go({**others, **wanted.to_query()})


def act(action: Callable[[], object]) -> None:
    """Run what a button does; a failure is shown on the page."""
    _forget()
    attempt(ERROR, action)


def _choose() -> None:
    name = st.session_state[CONTROL]
    _forget()
    _go(st.session_state[KEPT].get(name, {"view": name}))


def _forget() -> None:
    """What was said of the last action no longer holds."""
    st.session_state[ERROR] = st.session_state[TOLD] = None


def _go(parts: dict[str, str]) -> None:
    if st.query_params.to_dict() != parts:
        st.query_params.from_dict(parts)
