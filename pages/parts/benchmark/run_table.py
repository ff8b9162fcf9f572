"""The cells of a run as a table: medians with intervals, and the verdict as an arrow and a word in its colour."""

import math
from typing import Any

import pandas as pd
import streamlit as st

from engine.bench.findings.summary import CellSummary, Summary, words_of
from engine.samples import METRICS_BY_NAME
from engine.stats import Interval, Verdict
from engine.units import counted, digits, scale_of

GROUPS = {
    "Speed": ("tokens_per_s", "prefill_per_s", "decode_per_s", "ttft_s", "tpot_s", "e2e_s"),
    "Tails": ("ttft_s", "ttft_p95_s", "tpot_s", "tpot_p95_s", "gap_p50_s", "gap_p95_s", "gap_p99_s"),
    "Requests": ("requests_per_s", "goodput_per_s", "end_to_end_per_s", "e2e_s"),
    "Resources": ("cpu_cores", "pss_bytes", "private_bytes", "switches_per_s", "decode_share", "workbench_share"),
}
FACTS = {
    "Loading": {
        "load_cold_s": ("load, from disk", "s"),
        "load_warm_s": ("load, file in memory", "s"),
        "resident_share": ("in memory before the cold load", ""),
        "interpreter_s": ("interpreter and imports", "s"),
        "first_token_s": ("first token", "s"),
        "rest_s": ("rest of the process", "s"),
    },
    "Answers": {
        "kl_mean": ("KL, mean", "nats"),
        "kl_max": ("KL, largest", "nats"),
        "num_different": ("different", "answers"),
        "first_difference": ("the same for", "tokens"),
    },
}
"""Of each group the facts of a cell, with words and unit."""

GROUP, TABLE = "run_table_group", "run_table"
COLOURS = {"light": {"good": "#1A7F37", "bad": "#9A6700"}, "dark": {"good": "#3FB950", "bad": "#D29922"}}
ARROWS = {"good": "↑", "bad": "↓", "same": "=", "open": "?"}
MOST_ROWS_AUTO, MOST_ROWS_SHOWN, ROW_HEIGHT = 9, 15, 35


def show(summary: Summary) -> int | None:
    """Draw the table; gives the number of the cell that a person chose in it."""
    groups = [name for name in (*GROUPS, *FACTS) if _columns_of(name, summary)]
    if len(groups) > 1:
        st.segmented_control(
            "Columns", groups, default=groups[0], key=GROUP, required=True, label_visibility="collapsed"
        )
    group = st.session_state.get(GROUP, groups[0] if groups else "Speed")
    table = frame(summary, group if group in groups else "Speed")
    shown = table.style.apply(_colours(summary), subset=["verdict"]) if "verdict" in table else table
    height = "auto" if len(table) <= MOST_ROWS_AUTO else ROW_HEIGHT * (min(len(table), MOST_ROWS_SHOWN) + 1) + 3
    event = st.dataframe(
        shown, hide_index=True, height=height, key=TABLE, on_select="rerun", selection_mode="single-row",
        column_config=_config(table), alt="Cells of the run",
    )  # fmt: skip
    rows = event.selection.rows
    return summary.cells[rows[0]].number if rows else None


def frame(summary: Summary, group: str) -> pd.DataFrame:
    """One row a cell in the order of their numbers: its verdict, and the columns of the group."""
    table: dict[str, list[Any]] = {"cell": [cell.label or "the one cell" for cell in summary.cells]}
    if any(cell.verdict for cell in summary.cells):
        table["verdict"] = [verdict_of(cell, summary) for cell in summary.cells]
    for label, values in _columns_of(group, summary).items():
        table[label] = values
    if any(cell.reason for cell in summary.cells):
        table["remark"] = [cell.reason for cell in summary.cells]
    return pd.DataFrame(table)


def verdict_of(cell: CellSummary, summary: Summary) -> str:
    """The verdict in words: an arrow, the word, and by how much."""
    if cell.status in ("failed", "refused"):
        return cell.status
    if cell.verdict is None:
        return "compared with" if cell.number == summary.baseline else ""
    kind, verdict = _kind(cell.verdict, summary), cell.verdict
    if kind == "open":
        more = f": {counted(verdict.more_rounds, 'more round')}" if verdict.more_rounds else ""
        return f"{ARROWS[kind]} not enough data{more}"
    return (
        f"{ARROWS[kind]} same within 2 %"
        if kind == "same"
        else f"{ARROWS[kind]} {verdict.word} {verdict.ratio.value:.2f} ×"
    )


def _kind(verdict: Verdict, summary: Summary) -> str:
    better, worse = words_of(METRICS_BY_NAME[summary.main_metric])
    return {better: "good", worse: "bad", "same": "same"}.get(verdict.word, "open")


def _colours(summary: Summary) -> Any:
    """Styles of the verdict column, in the colours of the theme that the browser shows."""
    shades = COLOURS[st.context.theme.type or "light"]
    kinds = [_kind(cell.verdict, summary) if cell.verdict else "" for cell in summary.cells]
    return lambda _column: [f"color: {shades[kind]}" if kind in shades else "" for kind in kinds]


def _columns_of(group: str, summary: Summary) -> dict[str, list[Any]]:
    """Values by column label, each metric followed by its interval; columns that no cell has are left out."""
    columns: dict[str, list[Any]] = {}
    if group in FACTS:
        for name, (label, unit) in FACTS[group].items():
            columns |= _scaled(label, unit, [cell.facts.get(name, math.nan) for cell in summary.cells])
        return columns
    for name in dict.fromkeys([summary.main_metric, *GROUPS[group]]):
        metric = METRICS_BY_NAME[name]
        intervals = [cell.metrics.get(name) for cell in summary.cells]
        values = [interval.value if interval else math.nan for interval in intervals]
        column = _scaled(metric.label, metric.unit, values)
        columns |= column
        if column:
            columns[f"{metric.label}, 95 %"] = [_bounds(one, metric.unit, values) for one in intervals]
    return columns


def _bounds(interval: Interval | None, unit: str, values: list[float]) -> str:
    """Both ends of an interval, in the unit of its column."""
    if interval is None or not math.isfinite(interval.low + interval.high):
        return ""
    factor = scale_of(unit, max(abs(value) for value in values if math.isfinite(value))).factor
    return f"{digits(interval.low * factor)} – {digits(interval.high * factor)}"


def _scaled(label: str, unit: str, values: list[float]) -> dict[str, list[Any]]:
    """One column in the unit that reads best; nothing where no cell has a value."""
    known = [abs(value) for value in values if math.isfinite(value)]
    if not known:
        return {}
    scale = scale_of(unit, max(known))
    return {f"{label}, {scale.unit}" if scale.unit else label: [value * scale.factor for value in values]}


def _config(table: pd.DataFrame) -> dict[str, Any]:
    """Formats of the number columns, and the formula of a metric behind its heading."""
    formulas = {metric.label: metric.formula for metric in METRICS_BY_NAME.values()}
    config: dict[str, Any] = {"cell": st.column_config.TextColumn(pinned=True)}
    for column in table.columns:
        if table[column].dtype == float:
            decimals = 0 if table[column].abs().max() >= 100 else 1 if table[column].abs().max() >= 10 else 2
            config[column] = st.column_config.NumberColumn(
                format=f"%,.{decimals}f", help=formulas.get(column.rsplit(", ", 1)[0])
            )
    return config
