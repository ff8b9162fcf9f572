"""The table of values for the prompt's variables: a column for each, a row for each prompt to make of them."""

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

ROWS, START, NUMBER = "arms_rows", "arms_table_start", "arms_table_number"


def show(variables: Sequence[str]) -> None:
    """Draw the table; nothing where the prompt has no variables."""
    if not variables:
        return
    start = _start(variables)
    edited = st.data_editor(
        start, num_rows="dynamic", hide_index=True, key=f"arms_table_{st.session_state[NUMBER]}",
        column_config={name: st.column_config.TextColumn(name, default="") for name in variables},
    )  # fmt: skip
    rows = edited.fillna("").astype(str).to_dict("records")
    st.session_state[ROWS] = [row for row in rows if any(row.values())]


def _start(variables: Sequence[str]) -> pd.DataFrame:
    """What the editor began with: kept as it is while a person edits, made anew when the variables change."""
    state = st.session_state
    start = state.get(START)
    if start is None or list(start.columns) != list(variables):
        rows = [{name: row.get(name, "") for name in variables} for row in state[ROWS]]
        state[START] = start = pd.DataFrame(rows or [dict.fromkeys(variables, "")], columns=list(variables), dtype=str)
        state[NUMBER] = state.get(NUMBER, 0) + 1
    return start


def fill(rows: Sequence[Mapping[str, str]]) -> None:
    """Put rows on the screen; only before the table is drawn, or in a callback."""
    st.session_state[ROWS] = [dict(row) for row in rows if row]
    st.session_state[START] = None


def read(variables: Sequence[str]) -> tuple[dict[str, str], ...]:
    """The rows on the screen with the values of these variables; one without values where nothing is filled in."""
    rows = [{name: row.get(name, "") for name in variables} for row in st.session_state[ROWS]]
    return tuple(rows) if variables and rows else ({},)
