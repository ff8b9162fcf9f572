"""Table of values for the prompt's variables: one column per variable, one row per resulting prompt."""

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

ROWS, START, NUMBER = "arms_rows", "arms_table_start", "arms_table_number"


def show(variables: Sequence[str]) -> None:
    """Draw the table; nothing if the prompt has no variables."""
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
    """Return the editor's initial data: unchanged while a person edits, rebuilt when the variables change."""
    state = st.session_state
    start = state.get(START)
    if start is None or list(start.columns) != list(variables):
        rows = [{name: row.get(name, "") for name in variables} for row in state[ROWS]]
        state[START] = start = pd.DataFrame(rows or [dict.fromkeys(variables, "")], columns=list(variables), dtype=str)
        state[NUMBER] = state.get(NUMBER, 0) + 1
    return start


def fill(rows: Sequence[Mapping[str, str]]) -> None:
    """Put rows on the screen; call only before the table is drawn, or in a callback."""
    st.session_state[ROWS] = [dict(row) for row in rows if row]
    st.session_state[START] = None


def read(variables: Sequence[str]) -> tuple[dict[str, str], ...]:
    """Return the rows on the screen with values of these variables; a single empty row if nothing is filled in."""
    rows = [{name: row.get(name, "") for name in variables} for row in st.session_state[ROWS]]
    return tuple(rows) if variables and rows else ({},)
