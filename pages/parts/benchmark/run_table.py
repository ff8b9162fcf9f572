"""Table of a run's configurations: medians with intervals, and verdicts as an arrow and a word on a coloured badge."""

import math
from dataclasses import replace
from typing import Any, Literal

import pandas as pd
import streamlit as st

from engine.bench.analysis.summary import CellSummary, Summary
from engine.samples import METRICS_BY_NAME
from engine.units import counted
from pages.parts import address, number_columns
from pages.parts.benchmark import verdict_columns
from pages.parts.benchmark.verdict_columns import Judged

GROUPS = {
    "Speed": (
        "tokens_per_s", "prefill_per_s", "decode_per_s", "ttft_s", "tpot_s", "e2e_s", "sentences_per_s",
        "embedded_per_s",
    ),
    "Tails": ("ttft_s", "ttft_p95_s", "tpot_s", "tpot_p95_s", "gap_p50_s", "gap_p95_s", "gap_p99_s"),
    "Requests": ("requests_per_s", "goodput_per_s", "end_to_end_per_s", "e2e_s"),
    "Resources": (
        "cpu_cores", "pss_bytes", "private_bytes", "switches_per_s", "decode_share", "compute_share", "workbench_share",
    ),
}  # fmt: skip
FACTS = {
    "Loading": {
        "load_cold_s": ("cold load", "s"),
        "load_warm_s": ("warm load", "s"),
        "resident_share": ("in page cache before cold load", ""),
        "interpreter_s": ("interpreter and imports", "s"),
        "first_token_s": ("first token", "s"),
        "one_text_s": ("single text", "s"),
        "cut_share": ("texts truncated", ""),
        "rest_s": ("rest of the process", "s"),
    },
    "Answers": {
        "kl_mean": ("KL, mean", "nats"),
        "kl_max": ("KL, max", "nats"),
        "num_different": ("different", "answers"),
        "first_difference": ("identical for", "tokens"),
    },
    "Agreement": {
        "worst_cosine": ("worst", "cosine"),
        "mean_cosine": ("mean", "cosine"),
        "rank_correlation": ("order of pairs", "rank correlation"),
    },
}
"""The facts of a configuration in each group, with label and unit.

Agreement is with the vectors of float32, over the sentences that ship.
"""

GROUP, UNTRIED, TABLE = "run_table_group", "run_table_untried", "run_table"
MOST_ROWS_AUTO, MOST_ROWS_SHOWN, ROW_HEIGHT = 9, 15, 35


def show(summary: Summary, run_id: str) -> int | None:
    """Draw the table of a run; return the number of the configuration selected in it, or None.

    Each run has a table of its own, because a shared one would keep its column widths and selection.
    """
    groups = [name for name in (*GROUPS, *FACTS) if _has_own(name, summary)]
    asked = st.query_params.get("columns")
    group = asked if asked in groups else next(iter(groups), "Speed")
    tried = [cell for cell in summary.cells if is_tried(cell)]
    num_untried = len(summary.cells) - len(tried)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if len(groups) > 1:
            st.segmented_control(
                "Columns", groups, required=True, label_visibility="collapsed", **address.bound("columns", GROUP, group)
            )
        if (
            tried
            and num_untried
            and not st.toggle(f"Show {counted(num_untried, 'unmeasured configuration')}", key=UNTRIED)
        ):
            summary = replace(summary, cells=tuple(tried))
    table = frame(summary, group)
    verdicts = Judged([cell.verdict for cell in summary.cells], METRICS_BY_NAME[summary.main_metric])
    judged = {"verdict": verdicts} if "verdict" in table else {}
    height: int | Literal["auto"] = (
        "auto" if len(table) <= MOST_ROWS_AUTO else ROW_HEIGHT * (min(len(table), MOST_ROWS_SHOWN) + 1) + 3
    )
    event = st.dataframe(
        verdict_columns.drawn(table, judged), hide_index=True, height=height, key=f"{TABLE}_{run_id}",
        on_select="rerun", selection_mode="single-row", alt="Configurations of the run",
        column_config=verdict_columns.config(table, "configuration", judged),
    )  # fmt: skip
    rows = event.selection.rows
    return summary.cells[rows[0]].number if rows and rows[0] < len(summary.cells) else None


def is_tried(cell: CellSummary) -> bool:
    """Return False if a configuration has neither measurements nor a failure: a search left it out."""
    return bool(cell.metrics) or cell.status in ("failed", "refused")


def frame(summary: Summary, group: str) -> pd.DataFrame:
    """Return one row per configuration in order of number: its verdict, and the columns of the group."""
    table: dict[str, list[Any]] = {"configuration": [cell.label or "the only configuration" for cell in summary.cells]}
    if any(cell.verdict for cell in summary.cells):
        table["verdict"] = [verdict_of(cell, summary) for cell in summary.cells]
    for label, values in _columns_of(group, summary).items():
        table[label] = values
    if any(cell.reason for cell in summary.cells):
        table["remark"] = [cell.reason for cell in summary.cells]
    return pd.DataFrame(table)


def verdict_of(cell: CellSummary, summary: Summary) -> str:
    """Return the verdict in words: an arrow, the word, and the ratio."""
    if cell.status in ("failed", "refused"):
        return cell.status
    if cell.verdict is None:
        return "baseline" if cell.number in summary.baselines else ""
    return verdict_columns.words(cell.verdict, METRICS_BY_NAME[summary.main_metric])


def _has_own(group: str, summary: Summary) -> bool:
    """Return True if any configuration has a value in the group."""
    if group in FACTS:
        return bool(_columns_of(group, summary))
    return any(name in cell.metrics for cell in summary.cells for name in GROUPS[group])


def _columns_of(group: str, summary: Summary) -> dict[str, list[Any]]:
    """Return values by column label, each metric followed by its interval; columns without any value are left out."""
    columns: dict[str, list[Any]] = {}
    if group in FACTS:
        for name, (label, unit) in FACTS[group].items():
            columns |= number_columns.scaled(label, unit, [cell.facts.get(name, math.nan) for cell in summary.cells])
        return columns
    for name in dict.fromkeys([summary.main_metric, *GROUPS[group]]):
        columns |= verdict_columns.measured(METRICS_BY_NAME[name], [cell.metrics.get(name) for cell in summary.cells])
    if group == "Speed":
        worst = [cell.facts.get("worst_cosine", math.nan) for cell in summary.cells]
        columns |= number_columns.scaled("worst", "cosine", worst)
    return columns
