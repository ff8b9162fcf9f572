"""Paged list with its order and columns: of runs, of their configurations, or of trials."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import streamlit as st

from engine.history.filters import Filter
from engine.history.search import Found
from pages.parts.history import tables, view
from pages.parts.history.tables import Column
from pages.parts.plain import plain

PAGE, LONGEST_PAGE = 200, 6
"""Rows per page, and the maximum number of digits of a page number."""

ORDER, ALL = "history_order", "history_all"


class Listing(NamedTuple):
    """Definition of a list: its query, columns, orders, the column of links, and the columns that identify a row.

    `orders` maps columns, with a minus if descending, to labels.
    """

    noun: str
    find: Callable[..., Found]
    columns: Mapping[str, Column]
    orders: Mapping[str, str]
    link: str
    identity: tuple[str, ...] = ("id",)


def show(listing: Listing, wanted: Filter) -> tuple[int, list[dict[str, Any]]]:
    """Draw the list; return the total number of rows, and the rows that a person selected."""
    order = view.part("order") if view.part("order") in listing.orders else next(iter(listing.orders))
    page = max(int(view.part("page")[:LONGEST_PAGE]), 1) if view.part("page").isdecimal() else 1
    found = _find(listing, wanted, order, page)
    if not found.rows and page > 1:
        page = 1
        found = _find(listing, wanted, order, page)
    if not found.rows:
        return 0, []
    has_all = view.part("columns") == "all"
    columns = tables.columns_of(found, listing.columns, has_all=has_all)
    table = tables.frame(found.rows, columns)
    key = _key(listing, found)
    link = columns[listing.link].label if listing.link in columns else ""
    st.space("small")  # space for the table's own buttons, which would cover the controls above
    chosen = tables.draw(table, columns, key, f"{listing.noun}s found", link=link)
    opened = tables.opened(key)
    if opened is not None:
        open_row(found.rows[opened])
    _below(listing, found, order, page, has_all)
    return found.total, [found.rows[row] for row in chosen]


def open_row(row: Mapping[str, Any]) -> None:
    """Open the page of a row: its run on the Benchmark page, or its trial in the Prompt lab."""
    is_trial = "output_start" in row
    page = "prompt_lab.py" if is_trial else "benchmark.py"
    st.switch_page(page, query_params={"trial" if is_trial else "run": str(row.get("run_id") or row["id"])})


def _find(listing: Listing, wanted: Filter, order: str, page: int) -> Found:
    column, is_descending = order.removeprefix("-"), order.startswith("-")
    return listing.find(wanted, limit=PAGE, offset=PAGE * (page - 1), order=column, is_descending=is_descending)


def _key(listing: Listing, found: Found) -> str:
    """Return a key of the rows on the screen, so that a selection never applies to other rows in their places."""
    ids = " ".join(str(row[name]) for row in found.rows for name in listing.identity)
    return f"history_{listing.noun}_{hashlib.sha256(ids.encode()).hexdigest()[:12]}"


def _below(listing: Listing, found: Found, order: str, page: int, has_all: bool) -> None:
    """Draw the total and the range shown, the values that all rows share, the order and the columns."""
    first = PAGE * (page - 1)
    last = first + len(found.rows)
    shown = f"{found.total:,} {listing.noun}s" if found.total > 1 else f"1 {listing.noun}"
    if found.total > len(found.rows):
        shown = f"{first + 1:,}–{last:,} of {shown}"
    shared = tables.same(found, listing.columns) if len(found.rows) > 1 else ""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(shown + (f" · all: {plain(shared)}" if shared else ""), width="stretch")
        if found.total > PAGE:
            _turn("chevron_left", "Previous rows", page - 1, is_enabled=page > 1)
            _turn("chevron_right", "Next rows", page + 1, is_enabled=last < found.total)
        st.session_state[ORDER], st.session_state[ALL] = order, has_all
        st.selectbox(
            "Order", list(listing.orders), key=ORDER, label_visibility="collapsed", width=180,
            format_func=listing.orders.__getitem__,
            on_change=lambda: view.put(order=st.session_state[ORDER], page=""),
        )  # fmt: skip
        st.toggle("All columns", key=ALL, on_change=lambda: view.put(columns="all" if st.session_state[ALL] else ""))


def _turn(icon: str, help: str, page: int, *, is_enabled: bool) -> None:
    st.button(
        f":material/{icon}:", key=f"history_{icon}", type="tertiary", help=help, disabled=not is_enabled,
        on_click=lambda: view.put(page=str(page) if page > 1 else ""),
    )  # fmt: skip
