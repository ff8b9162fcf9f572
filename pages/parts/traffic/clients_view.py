"""Totals by client."""

from typing import Any

import pandas as pd
import streamlit as st

from engine.api.openai.client_totals import by_client
from engine.api.openai.traffic import KEPT_CALLS, Traffic
from engine.units import NOT_MEASURED
from pages.parts import number_columns
from pages.parts.plain import visible

REFRESH_S = 2.0
TIMES = {"took": ("p50_s", "p95_s"), "first token": ("ttft_p50_s", "ttft_p95_s")}
TOOK = f"from the request to its end, of those of the latest {KEPT_CALLS:,} calls that succeeded"
FIRST = f"from the request to the first token, of the latest {KEPT_CALLS:,} calls"
HELPS = {"took, p50": TOOK, "took, p95": TOOK, "first token, p50": FIRST, "first token, p95": FIRST}
COUNTS = ("requests", "errors", "tokens")


@st.fragment(run_every=REFRESH_S)
def show(traffic: Traffic) -> None:
    """Draw the table, folded."""
    with st.expander("By client", key="traffic_clients"):
        found = by_client(traffic)
        table: dict[str, Any] = {
            "client": [visible(one.client) for one in found],
            "requests": [one.num_calls for one in found],
            "errors": [one.num_failed for one in found],
            "tokens": [one.num_tokens for one in found],
        }
        for label, names in TIMES.items():
            p50, p95 = ([getattr(one, name) for one in found] for name in names)
            if any(value is not None for value in p50):
                table |= number_columns.alike("s", {f"{label}, p50": p50, f"{label}, p95": p95})
        framed = pd.DataFrame(table)
        config = number_columns.formats(framed, HELPS) | number_columns.counts(*COUNTS, help="since the start")
        st.dataframe(framed, hide_index=True, alt="Totals by client", placeholder=NOT_MEASURED, column_config=config)
