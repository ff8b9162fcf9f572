"""Table of calls, newest first, live; the selected one is shown below it with its request."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from engine.api.openai.traffic import CallRow, Figures, Traffic
from engine.units import NOT_MEASURED, counted
from engine.workbench import Workbench
from pages.parts import number_columns
from pages.parts.history import tables
from pages.parts.plain import visible
from pages.parts.traffic import call_view
from pages.parts.units import local_time

LIVE_S, IDLE_S = 0.25, 1.0
SHOWN_ROWS = 200
STATES = {"": "All", "running": "Running", "done": "Done", "failed": "Failed"}
LIVE = ("waiting", "running")
STATE, CLIENT, TABLE = "traffic_state", "traffic_client", "traffic_calls"
NEWEST, NUMBERS, CALL = "traffic_newest", "traffic_numbers", "call"
"""Keys of the newest call of the rows while one is selected and of the numbers of the rows; query parameter."""

HELPS = {
    "cached": "share of the prompt's tokens that were taken from the cache",
    "first token": "from the request to the first token",
    "surprise": "mean of -log2 p over the tokens",
    "least expected": "the token with the lowest probability, and that probability",
}


def show(bench: Workbench, traffic: Traffic) -> None:
    """Draw the filter and the table, which follows the calls while they run."""
    _filter(traffic)
    is_live = any(row.state in LIVE for row in traffic.rows(SHOWN_ROWS))
    st.fragment(_follow, run_every=LIVE_S if is_live else IDLE_S)(bench, traffic, is_live)


def _filter(traffic: Traffic) -> None:
    clients = list(dict.fromkeys(row.client for row in traffic.rows()))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.segmented_control(
            "State", list(STATES), key=STATE, default="", format_func=STATES.__getitem__, required=True,
            label_visibility="collapsed",
        )  # fmt: skip
        if len(clients) > 1:
            st.selectbox(
                "Client", clients, index=None, key=CLIENT, placeholder="every client", width=260,
                label_visibility="collapsed", format_func=visible,
            )  # fmt: skip


def _follow(bench: Workbench, traffic: Traffic, is_live: bool) -> None:
    """Draw the table; rerun the page when the first call begins or the last ends, as the pace of this depends on it.

    While a call is selected the rows stay in their places, so that the selection is never of another call.
    """
    newest = st.session_state.get(NEWEST, traffic.num_calls)
    rows = [row for row in traffic.rows() if row.number <= newest and _is_wanted(row)][:SHOWN_ROWS]
    if is_live != any(row.state in LIVE for row in traffic.rows(SHOWN_ROWS)):
        st.rerun()
    if not rows:
        st.caption("No call matches.")
        return
    st.session_state[NUMBERS] = [row.number for row in rows]
    table = frame(rows)
    st.dataframe(
        table, hide_index=True, key=TABLE, on_select=_choose, selection_mode="single-row", alt="Calls, newest first",
        height="auto" if len(table) <= tables.MOST_ROWS_AUTO else tables.MOST_HEIGHT, placeholder=NOT_MEASURED,
        column_config=number_columns.formats(table, HELPS)
        | {"when": st.column_config.DatetimeColumn(format="HH:mm:ss", pinned=True, width=90)},
    )  # fmt: skip
    st.caption(_told(traffic, newest, len(rows)))
    chosen = next((row for row in rows if str(row.number) == st.query_params.get(CALL)), None)
    if chosen is not None:
        call_view.show(bench, chosen)


def _choose() -> None:
    """Open the selected call, or none."""
    selected = st.session_state[TABLE]["selection"]["rows"]
    if selected:
        numbers = st.session_state[NUMBERS]
        st.session_state[NEWEST] = numbers[0]
        st.query_params[CALL] = str(numbers[selected[0]])
    else:
        st.session_state.pop(NEWEST, None)
        st.query_params.pop(CALL, None)


def _told(traffic: Traffic, newest: int, num_rows: int) -> str:
    """Return how many calls there are, in words."""
    told = [f"{counted(traffic.num_calls, 'call')} since the start"]
    if num_rows == SHOWN_ROWS:
        told.append(f"the latest {SHOWN_ROWS} shown")
    if traffic.num_calls > newest:
        told.append(f"{traffic.num_calls - newest:,} newer ones appear when none is selected")
    return " · ".join(told)


def frame(rows: Sequence[CallRow]) -> pd.DataFrame:
    """Return calls as a table."""
    figures = [row.figures for row in rows]
    table: dict[str, Any] = {
        "when": [local_time(row.at) for row in rows],
        "client": [visible(row.client) for row in rows],
        "endpoint": [row.endpoint.removeprefix("/v1/") for row in rows],
        "model": [visible(row.model) for row in rows],
        "state": [row.state for row in rows],
        "tokens": [each.num_generated for each in figures],
    }
    table |= number_columns.scaled("decode", "tok/s", [each.per_s for each in figures])
    table |= number_columns.scaled("first token", "s", [each.ttft_s for each in figures])
    table["cached"] = [
        f"{each.num_cached / each.num_prompt:.0%}".replace("%", " %") if each.num_prompt else "" for each in figures
    ]
    table |= number_columns.scaled("surprise", "bits", [each.surprise_bits for each in figures])
    table["least expected"] = [_unsure(each) for each in figures]
    return pd.DataFrame(table)


def _unsure(figures: Figures) -> str:
    if figures.unsure_p is None:
        return ""
    return f"{visible(figures.unsure.replace(' ', '␣'))}  {100 * figures.unsure_p:.2g} %"


def _is_wanted(row: CallRow) -> bool:
    state, client = st.session_state.get(STATE) or "", st.session_state.get(CLIENT)
    states = LIVE if state == "running" else ("done", "stopped") if state == "done" else (state,)
    return (not state or row.state in states) and client in (None, row.client)
