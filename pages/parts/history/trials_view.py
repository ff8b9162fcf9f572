"""List of trials of the Prompt lab and of comparisons, and outlying tokens over all trials found."""

import streamlit as st

from engine.history import History
from engine.history.filters import Filter
from engine.history.search import Found
from engine.workbench import Workbench
from pages.parts.history import by_meaning, filter_bar, listing, selection, tables, view
from pages.parts.history.listing import Listing
from pages.parts.history.selection import Chosen

ROWS = {"trials": "Each trial", "unsure": "Least confident tokens", "slow": "Slowest tokens"}
MOST_TOKENS = 50
ORDERS = {
    "-created_at": "Newest first",
    "created_at": "Oldest first",
    "-mean_surprise_bits": "Highest surprise",
    "decode_per_s": "Slowest",
    "-num_generated": "Longest",
}


def show(bench: Workbench, history: History) -> None:
    """Draw the view."""
    wanted = filter_bar.show(history, "trial", ROWS)
    rows = view.rows(ROWS)
    if rows != "trials":
        _tokens(history, wanted, rows)
        return
    by_meaning.control()
    usual = Listing("trial", history.find.trials, tables.TRIAL, ORDERS, "title")
    listed = by_meaning.listing(bench, history, wanted, usual) if by_meaning.is_asked() else usual
    if listed is None:
        return
    num_found, chosen = listing.show(listed, wanted)
    selection.undo(bench)
    if num_found:
        selection.show(bench, history, Chosen("trial", chosen))
    elif not history.recent(1):
        st.caption("No trials yet.")
        st.page_link("prompt_lab.py", label="Run the first one in the Prompt lab", icon=":material/edit_note:")
    elif listed is not usual and bench.meaning.reading is not None:
        st.caption("Nothing matches this filter among the texts indexed so far.")
    else:
        filter_bar.nothing(wanted)


def _tokens(history: History, wanted: Filter, rows: str) -> None:
    """Draw tokens of all trials found, each with a button that opens its trial."""
    find = history.find.unsure_tokens if rows == "unsure" else history.find.slow_tokens
    tokens = find(wanted, MOST_TOKENS)
    if not tokens:
        st.caption("No token of these trials was inspected." if rows == "unsure" else "No tokens to show.")
        return
    found = Found.of(tokens, len(tokens))
    columns = tables.columns_of(found, tables.TOKEN, has_all=True)
    key = f"history_{rows}"
    chosen = tables.draw(tables.frame(tokens, columns), columns, key, ROWS[rows], is_single=True, link="trial")
    opened = tables.opened(key)
    if chosen and st.button("Open the trial", type="primary", icon=":material/open_in_new:", key="history_open_token"):
        opened = chosen[0]
    if opened is not None:
        st.switch_page("prompt_lab.py", query_params={"trial": str(tokens[opened]["trial_id"])})
