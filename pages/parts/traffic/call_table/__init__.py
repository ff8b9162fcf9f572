"""Table of calls, newest first, live: a component that has its rows from a web socket, without reruns of the page."""

from pathlib import Path

import streamlit as st

from engine.api.openai.traffic import Traffic
from pages.parts import address
from pages.parts.component import component
from pages.parts.token_strip import module
from pages.parts.traffic.call_cells import COLUMNS
from pages.parts.traffic.call_feed import SHOWN_ROWS, SOCKET_PATH
from pages.parts.traffic.call_filter import MOST_CLIENTS, Wanted

KEY, CALL, ANSWER = "traffic_calls", "call", "answer"
"""Key of the component; query parameters of the open call and of its answer."""
EMPTY = "No calls yet. This page shows each one from its first token on."
HERE = Path(__file__).parent
_component = component(
    "logitbench_call_table",
    js=module(["element"], HERE / "calls.js", "Calls"),
    css=(HERE / "calls.css").read_text("utf-8"),
)


def show(traffic: Traffic, wanted: Wanted) -> None:
    """Draw the table of the calls that match; a click puts the call into the URL."""
    chosen = st.query_params.get(CALL, "")
    _component(
        key=KEY,
        data={
            "socket": SOCKET_PATH,
            "columns": [list(column) for column in COLUMNS],
            "wanted": {name: getattr(wanted, name) for name in wanted.__struct_fields__},
            "chosen": int(chosen) if chosen.isascii() and chosen.isdecimal() and len(chosen) < 10 else 0,
            "most": SHOWN_ROWS,
            "isFiltered": wanted != Wanted(),
            "empty": EMPTY if wanted == Wanted() else "No call matches.",
            "clients": list(dict.fromkeys(row.client for row in traffic.rows()))[:MOST_CLIENTS],
        },
        on_chosen_change=_choose,
        on_fresh_change=_nothing,
    )


def _choose() -> None:
    """Open the call that was clicked, or none."""
    number = st.session_state[KEY].chosen
    address.put(CALL, str(number) if isinstance(number, int) and number > 0 else "")
    address.put(ANSWER, "")


def _nothing() -> None:
    """Trigger callback: registering it makes Streamlit rerun the page, whose filter then has the new client."""
