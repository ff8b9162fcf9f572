"""Totals by client."""

from typing import Any

import pandas as pd
import streamlit as st

from engine.api.openai.traffic import Traffic, by_client
from pages.parts import number_columns
from pages.parts.plain import visible

HELPS = {
    "median": "from the request to its end, of the calls that succeeded",
    "95th percentile": "of the same times",
}


def show(traffic: Traffic) -> None:
    """Draw the table, folded."""
    with st.expander("By client", key="traffic_clients"):
        found = by_client(traffic.rows())
        table: dict[str, Any] = {
            "client": [visible(one.client) for one in found],
            "calls": [one.num_calls for one in found],
            "failed": [one.num_failed for one in found],
            "tokens": [one.num_tokens for one in found],
        }
        table |= number_columns.scaled("median", "s", [one.p50_s for one in found])
        table |= number_columns.scaled("95th percentile", "s", [one.p95_s for one in found])
        framed = pd.DataFrame(table)
        st.dataframe(
            framed, hide_index=True, alt="Totals by client", column_config=number_columns.formats(framed, HELPS)
        )
