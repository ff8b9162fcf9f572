"""List of runs or their configurations; one configuration over time; this machine's rank among the references."""

from functools import partial
from typing import Any

import streamlit as st

from engine.bench.analysis.entries import key_of
from engine.history import History
from engine.samples import MAIN_METRICS, METRICS_BY_NAME
from engine.workbench import Workbench
from pages.parts.history import filter_bar, listing, machine_ranking, selection, tables, trend, view
from pages.parts.history.listing import Listing
from pages.parts.history.selection import Chosen

ROWS = {"runs": "Each run", "cells": "Each configuration"}
BY_TIME = {"-created_at": "Newest first", "created_at": "Oldest first"}


def show(bench: Workbench, history: History) -> None:
    """Draw the view; without any run it shows the reference machines."""
    if view.part("trend"):
        trend.show(bench, history)
        return
    wanted = filter_bar.show(history, "run", ROWS)
    num_found, chosen = listing.show(_listing(history, view.rows(ROWS)), wanted)
    selection.undo(bench)
    if num_found:
        selection.show(bench, history, Chosen("run", chosen))
        _one(chosen)
        machine_ranking.line(history)
    elif history.runs.newest_id() is None:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.caption("No runs yet. These are the timings that come with the workbench.", width="content")
            st.page_link("benchmark.py", label="Measure this machine", icon=":material/speed:")
        machine_ranking.show(history)
    else:
        filter_bar.nothing(wanted)


def _listing(history: History, rows: str) -> Listing:
    if rows == "cells":
        orders = BY_TIME | {f"-{name}": f"By {METRICS_BY_NAME[name].label}" for name in MAIN_METRICS}
        return Listing("configuration", history.find.cells, tables.CELL, orders, "name", ("run_id", "cell"))
    orders = BY_TIME | {"-best": "Best first", "name": "By name", "model_name": "By model"}
    return Listing("run", history.find.runs, tables.RUN, orders, "name")


def _one(chosen: list[dict[str, Any]]) -> None:
    """Draw a button that shows a single configuration over time."""
    if len(chosen) == 1:
        (row,) = chosen
        key = key_of(row.get("run_id") or row["id"], row.get("cell", 0))
        st.button(
            "Over time", icon=":material/timeline:", type="tertiary", key="history_trend",
            help="Every run of the same configuration, with noise, versions and notes.",
            on_click=partial(view.put, trend=key, metric=row.get("best_metric") or ""),
        )  # fmt: skip
