"""Table of compared configurations: the settings that differ, metrics with intervals and verdicts, and remarks."""

from collections.abc import Sequence
from typing import Any, Literal

import pandas as pd
import streamlit as st

from engine.bench.analysis.comparison import Comparison
from engine.bench.analysis.entries import Entry, heading, label_of, shown
from engine.samples import METRICS_BY_NAME
from engine.stats import Verdict
from pages.parts import address
from pages.parts.benchmark import verdict_columns
from pages.parts.benchmark.run_facts import facts
from pages.parts.benchmark.run_table import GROUPS, MOST_ROWS_AUTO, MOST_ROWS_SHOWN, ROW_HEIGHT
from pages.parts.benchmark.verdict_columns import Judged
from pages.parts.compare import run_pen
from pages.parts.labels import distinct

GROUP, TABLE, NAME = "compare_group", "compare_table", "configuration"
BASELINE, SAME = "baseline", "same configuration, verdict"
SAME_HELP = "Against the same configuration in the run of the baseline"


def show(comparison: Comparison) -> Entry | None:
    """Draw the table; return the entry selected in it, or None.

    Other entries get a table of their own, with its own column widths.
    """
    groups = [name for name, metrics in GROUPS.items() if set(metrics) & set(comparison.measured)]
    asked = st.query_params.get("columns")
    group = asked if asked in groups else next(iter(groups), "")
    if len(groups) > 1:
        st.segmented_control(
            "Columns", groups, required=True, label_visibility="collapsed", **address.bound("columns", GROUP, group)
        )
    metrics = metrics_of(comparison, group)
    table = frame(comparison, metrics)
    judged = {
        _heading(comparison, name): Judged(_verdicts(comparison, name), METRICS_BY_NAME[name])
        for name in _judged(comparison, metrics)
    }
    if SAME in table:
        judged[SAME] = Judged(_between(comparison), METRICS_BY_NAME[comparison.main_metric], SAME_HELP)
    height: int | Literal["auto"] = (
        "auto" if len(table) <= MOST_ROWS_AUTO else ROW_HEIGHT * (min(len(table), MOST_ROWS_SHOWN) + 1) + 3
    )
    event = st.dataframe(
        verdict_columns.drawn(table, judged), hide_index=True, height=height, key=key_of_table(comparison.entries),
        on_select="rerun", selection_mode="single-row", alt="Configurations side by side",
        column_config=verdict_columns.config(table, NAME, judged),
    )  # fmt: skip
    rows = event.selection.rows
    return comparison.entries[rows[0]] if rows and rows[0] < len(comparison.entries) else None


def key_of_table(entries: Sequence[Entry]) -> str:
    """Return the key of the table that has these rows."""
    return f"{TABLE}_{hash(tuple(entry.key for entry in entries))}"


def metrics_of(comparison: Comparison, group: str) -> list[str]:
    """Return the main metric, then those of a column group that any entry has."""
    names = (comparison.main_metric, *GROUPS.get(group, ()))
    return [name for name in dict.fromkeys(names) if name in comparison.measured]


def frame(comparison: Comparison, metrics: list[str]) -> pd.DataFrame:
    """Return one row per entry: verdicts of the main metric, remarks, differing settings, each metric with its own."""
    entries = comparison.entries
    table: dict[str, list[Any]] = {NAME: [entry.label for entry in entries]}
    judged = _judged(comparison, metrics)
    if comparison.main_metric in judged:
        table[_heading(comparison, comparison.main_metric)] = _words(comparison, comparison.main_metric)
    if comparison.run_to_run:
        metric = METRICS_BY_NAME[comparison.main_metric]
        table[SAME] = [verdict_columns.words(one, metric) if one else "" for one in _between(comparison)]
    if any(entry.marks for entry in entries):
        table["remarks"] = [", ".join(entry.marks) for entry in entries]
    measured: dict[str, list[Any]] = {}
    for name in metrics:
        measured |= verdict_columns.measured(METRICS_BY_NAME[name], [entry.cell.metrics.get(name) for entry in entries])
        if name in judged and name != comparison.main_metric:
            measured[_heading(comparison, name)] = _words(comparison, name)
    own = {(name,): name for name in (*table, *measured)}  # settings of imported runs may have these names
    heads = distinct({**own, **{name: heading(name) for name in comparison.differing}})
    table |= {heads[name]: _setting(entries, name) for name in comparison.differing}
    return pd.DataFrame(table | measured)


def same(comparison: Comparison) -> str:
    """Return the settings that all entries share, as a sentence; empty if there are none."""
    settings = [
        f"{label_of(name)} {shown(name, value)}"
        for name, value in comparison.same.items()
        if value != "" and all(name in entry.settings for entry in comparison.entries)
    ]
    return f"Same for all: {' · '.join(settings)}." if settings else ""


def machines(comparison: Comparison) -> pd.DataFrame:
    """Return the machine and versions of each run: a row for each fact, a column for each run."""
    runs = {entry.run.id: entry.run for entry in comparison.entries}
    labels = distinct({run.id: run.name or run.question for run in runs.values()})
    facts_of_runs = {labels[run.id]: facts(run) for run in runs.values()}
    names = list(dict.fromkeys(name for of_run in facts_of_runs.values() for name in of_run))
    columns = {label: [of_run.get(name, "") for name in names] for label, of_run in facts_of_runs.items()}
    return pd.DataFrame({"property": names, **columns})


def _setting(entries: Sequence[Entry], name: str) -> list[Any]:
    """Return numbers unchanged, so that the table can sort by them; else text, empty if an entry lacks it."""
    values = [entry.settings.get(name, "") for entry in entries]
    return values if all(map(run_pen.is_number, values)) else [shown(name, value) for value in values]


def _judged(comparison: Comparison, metrics: list[str]) -> list[str]:
    """Return the metrics that have a verdict."""
    judged = {name for _, name in comparison.verdicts}
    return [name for name in metrics if name in judged]


def _heading(comparison: Comparison, name: str) -> str:
    return "verdict" if name == comparison.main_metric else f"{METRICS_BY_NAME[name].label}, verdict"


def _verdicts(comparison: Comparison, name: str) -> list[Verdict | None]:
    return [comparison.verdicts.get((entry.key, name)) for entry in comparison.entries]


def _words(comparison: Comparison, name: str) -> list[str]:
    metric = METRICS_BY_NAME[name]
    return [
        verdict_columns.words(verdict, metric) if verdict else BASELINE * (entry.key == comparison.baseline)
        for entry, verdict in zip(comparison.entries, _verdicts(comparison, name), strict=True)
    ]


def _between(comparison: Comparison) -> list[Verdict | None]:
    """Return the verdict of each entry against the same configuration of the baseline's run; None without one."""
    return [comparison.run_to_run.get(entry.key) for entry in comparison.entries]
