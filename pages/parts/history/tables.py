"""Tables of search results: the columns that differ, or all; figures in the most readable unit."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

import pandas as pd
import streamlit as st

from engine.bench.analysis import entries
from engine.history.search import Found
from engine.samples import METRICS_BY_NAME
from engine.units import NOT_MEASURED, quantity
from pages.parts import number_columns
from pages.parts.benchmark.run_state import ASKED
from pages.parts.labels import distinct
from pages.parts.units import local_time

MOST_ROWS_AUTO, ROW_HEIGHT, MOST_HEIGHT, WHEN_WIDTH = 9, 35, 440, 126
LINK_WIDTH, LINK_EDGES, LINK_CHARACTER = 200, 34, 8
"""Pixels of a column of links: at most, beside its texts, and for each of their characters."""

OPEN = "_open"
"""Ending of the session state key of a click on a link of a table."""

EMPTY = "(empty)"
"""Placeholder for an empty prompt of a trial, or the empty name of a run."""


class Column(NamedTuple):
    """A column: its heading, the unit of its figures, its help and its maximum width.

    `unit` is None for text or counts; `width` is in pixels, None to fit the content.
    """

    label: str
    unit: str | None = None
    help: str | None = None
    width: int | None = None


STAR = {"is_starred": Column("★")}
MARKS = {"is_archived": Column("archive"), "tags": Column("tags"), "note": Column("note")}
ORIGIN = Column("origin", help="measured here, by another program, or noted by hand")
MODEL = {"model_name": Column("model"), "quantisation": Column("quantisation"), "machine": Column("machine")}
RUN = {
    **STAR, "created_at": Column("when"), "name": Column("name"), "question": Column("question"),
    "best": Column("best", help="median of the best configuration, in the metric named"),
    "sentence": Column("result", width=420), "status": Column("status"),
    "origin": ORIGIN, **MODEL, "num_cells": Column("configurations", help="number of configurations measured"),
    "num_samples": Column("samples", help="of all configurations, without replaced ones"),
    "num_disturbed": Column("disturbed", help="samples among them that other activity disturbed"),
    "num_replaced": Column("replaced", help="further samples, each of which was measured again"), **MARKS,
}  # fmt: skip
CELL = {
    **STAR, "created_at": Column("when"), "name": Column("run"), "label": Column("configuration"),
    "question": Column("question"), "status": Column("status"), "reason": Column("remark"), "origin": ORIGIN, **MODEL,
    "num_counted": Column("samples counted", help="used for the medians: only clean ones if all have enough"),
}  # fmt: skip
TRIAL = {
    **STAR, "created_at": Column("when"), "title": Column("prompt", width=220),
    "output_start": Column("answer", width=280),
    **MODEL, "temperature": Column("temperature"), "seed": Column("seed"), "num_generated": Column("tokens"),
    "decode_per_s": Column("decode", "tok/s", METRICS_BY_NAME["decode_per_s"].formula),
    "ttft_s": Column("first token", "s", METRICS_BY_NAME["ttft_s"].formula),
    "mean_surprise_bits": Column("surprise", "bits", "mean of -log2 p over the tokens"),
    "lowest_p": Column("lowest p", "", "probability of the least expected token"),
    "slowest_s": Column("slowest token", "s", "longest wait for a token after the first"),
    "num_prompt": Column("prompt tokens"),
    "num_cached": Column("prompt tokens reused", help="taken from the cache of an earlier trial instead of computed"),
    "prefill_per_s": Column("prefill", "tok/s", METRICS_BY_NAME["prefill_per_s"].formula),
    "threads": Column("threads", help="used for most of its tokens"),
    "label": Column("made by", help="the button that made it, if not Run"), **MARKS,
}  # fmt: skip
TOKEN = {
    "title": Column("trial"), "position": Column("position"), "text": Column("token"),
    "p": Column("p", "", "probability under the model, before sampling"),
    "elapsed_s": Column("time", "s", "since the previous token"),
}  # fmt: skip
INNER = ("id", "run_id", "trial_id", "cell", "model", "best_metric")
FLAGS = {"is_starred": "★", "is_archived": "archived"}
LINKS = ("name", "title")
ALWAYS = ("similarity", "matched", "created_at", "name", "best", "sentence", "label", "title", "output_start")


def columns_of(found: Found, known: Mapping[str, Column], *, has_all: bool) -> dict[str, Column]:
    """Return the columns to show, in order: those that differ within the result, or every one with a value."""
    rest = {name: _other(name) for name in _names(found) if name not in {**known, **MARKS} and not _is_inner(name)}
    columns = {**known, **rest, **MARKS}
    shown = {name: column for name, column in columns.items() if _is_shown(name, found, has_all=has_all)}
    labels = distinct({name: column.label for name, column in shown.items()})
    return {name: column._replace(label=labels[name]) for name, column in shown.items()}


def frame(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column]) -> pd.DataFrame:
    """Return the rows as a table under the headings of its columns."""
    table: dict[str, Any] = {}
    for name, column in columns.items():
        values = [row.get(name) for row in rows]
        if column.unit is not None:
            table |= number_columns.scaled(column.label, column.unit, values)
        elif name == "best":
            table[column.label] = [_best(row) for row in rows]
        elif name in FLAGS:
            table[column.label] = [FLAGS[name] if value else "" for value in values]
        else:
            table[column.label] = _of_one_kind([_shown(name, value) for value in values])
    return pd.DataFrame(table)


def draw(
    table: pd.DataFrame, columns: Mapping[str, Column], key: str, alt: str, *, is_single: bool = False, link: str = ""
) -> list[int]:
    """Draw a table; return the positions of the rows that a person selected in it.

    link: the heading of the column whose texts open their row, see `opened`.
    """
    helps = {column.label: column.help for column in columns.values() if column.help}
    config = number_columns.formats(table, helps)
    config |= {
        each.label: st.column_config.TextColumn(width=each.width, help=each.help)
        for each in columns.values()
        if each.width
    }
    if link in table:
        most = next((each.width for each in columns.values() if each.label == link), None) or LINK_WIDTH
        longest = max(map(len, (link, *table[link])))
        config[link] = st.column_config.ButtonColumn(
            type="tertiary", alignment="left", key=key + OPEN,
            width=min(LINK_EDGES + LINK_CHARACTER * longest, most),
        )  # fmt: skip
    if "when" in table:
        config["when"] = st.column_config.DatetimeColumn(format="D MMM YYYY, HH:mm", pinned=True, width=WHEN_WIDTH)
    height: int | Literal["auto"] = (
        "auto" if len(table) <= MOST_ROWS_AUTO else min(ROW_HEIGHT * (len(table) + 1) + 3, MOST_HEIGHT)
    )
    event = st.dataframe(
        table, hide_index=True, height=height, key=key, on_select="rerun", column_config=config, alt=alt,
        placeholder=NOT_MEASURED,
        selection_mode="single-row" if is_single else "multi-row",
    )  # fmt: skip
    return [row for row in event.selection.rows if row < len(table)]


def opened(key: str) -> int | None:
    """Return the position of the row whose link was just clicked in the table of this key."""
    click = st.session_state.get(key + OPEN)
    return None if click is None else int(click["row"])


def same(found: Found, known: Mapping[str, Column]) -> str:
    """Return the values that all rows share, in one line."""
    named = [name for name in found.same if name in (*MODEL, "temperature")]
    values = {known.get(name, _other(name)).label: _shown(name, found.same[name]) for name in named}
    return " · ".join(f"{label} {value}" for label, value in values.items() if value not in (None, ""))


def label_of(name: str) -> str:
    """Return the label of a setting or a figure."""
    return TRIAL.get(name, _other(name)).label


def _names(found: Found) -> list[str]:
    return list(dict.fromkeys(name for row in found.rows for name in row))


def _is_inner(name: str) -> bool:
    """Return True for ids, hashes and numbers of configurations, which mean nothing to a person."""
    return name.endswith("_hash") or name in INNER


def _is_shown(name: str, found: Found, *, has_all: bool) -> bool:
    if name in LINKS:
        return True
    has_value = any(
        value is not None and value is not False and value not in ("", []) for value in _column(name, found)
    )
    return has_value and (has_all or name in ALWAYS or name in found.differing)


def _column(name: str, found: Found) -> list[Any]:
    return [row.get(name) for row in found.rows]


def _other(name: str) -> Column:
    """Return the column of a metric or of a setting."""
    if name in METRICS_BY_NAME:
        metric = METRICS_BY_NAME[name]
        return Column(metric.label, metric.unit, metric.formula)
    return Column(entries.heading(name))


def _best(row: Mapping[str, Any]) -> str:
    """Return a run's best figure with its metric, since metrics differ from run to run."""
    metric = METRICS_BY_NAME.get(row.get("best_metric") or "")
    return f"{quantity(row['best'], metric.unit)} {metric.label}" if metric and row.get("best") is not None else ""


def _of_one_kind(values: list[Any]) -> Any:
    """Return values of one type for a column: nullable integers, or text if the types are mixed."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int}:
        return pd.array(values, dtype="Int64")
    is_one_kind = len(kinds) <= 1 or kinds == {int, float}
    return values if is_one_kind else ["" if value is None else str(value) for value in values]


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return local_time(value)
    if name == "output_start":
        return value.strip()
    if name in ("title", "name"):
        return value or EMPTY
    if name == "layout" and value:
        return entries.shown(name, value)
    if name == "text":
        return value.replace(" ", "␣").replace("\n", "↵")
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return ASKED.get(value, value) if name == "question" else value
