"""SQL console: an editor, ready-made queries, the available tables, and the result as table, chart and file."""

import io
from functools import partial

import pyarrow as pa
import pyarrow.parquet
import streamlit as st

from engine.csv_cells import table_csv
from engine.errors import EngineError
from engine.history import History
from engine.history.console import MOST_ROWS, READY, Result
from engine.units import counted, quantity
from pages.parts import address
from pages.parts.benchmark import charts
from pages.parts.history import sql_chart, view
from pages.parts.labels import distinct
from pages.parts.notice import notice
from pages.parts.plain import plain
from pages.parts.units import local_time

EDITOR, SHOWN, READY_MADE, TABLE, CHART, RESULT, ASKED = (
    f"history_sql_{name}" for name in ("editor", "shown", "ready", "table", "chart", "result", "asked")
)
TIMEOUT_S = 2


def show(history: History) -> None:
    """Draw the view. A URL fills the editor but runs nothing, since the link may come from a foreign page."""
    asked = view.part("query")
    if EDITOR not in st.session_state or st.session_state.get(SHOWN) != asked:
        st.session_state[EDITOR] = asked or st.session_state.get(EDITOR) or READY[0][1]
        st.session_state[SHOWN] = asked
    editor, browser = st.columns([7, 3], gap="medium")
    with editor:
        _editor()
    with browser:
        _tables(history)
    if asked and asked == st.session_state.get(ASKED):
        _answer(history, asked)
    elif asked:
        st.caption("This query came from the URL. Read it, then press Run.")


def _editor() -> None:
    st.text_area(
        "SQL", key=EDITOR, height=200, label_visibility="collapsed", placeholder="SELECT …", persist_state="session"
    )
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.button(
            "Run", type="primary", icon=":material/play_arrow:", shortcut="Ctrl+Enter", key="history_sql_run",
            on_click=_ask,
        )  # fmt: skip
        st.selectbox(
            "Example queries", [name for name, _ in READY], index=None, key=READY_MADE, placeholder="Example queries",
            label_visibility="collapsed", width=280, on_change=_ask_ready,
        )  # fmt: skip
        st.caption(f"Read-only, at most {MOST_ROWS:,} rows and {TIMEOUT_S} s.", width="content")


def _ask() -> None:
    st.session_state.pop(RESULT, None)
    st.session_state[ASKED] = sql = st.session_state[EDITOR].strip()
    view.put(query=sql, x="", y="")


def _ask_ready() -> None:
    sql = dict(READY).get(st.session_state[READY_MADE])
    if sql:
        st.session_state[EDITOR] = sql
        _ask()


def _tables(history: History) -> None:
    """Draw the tables and views that can be queried, with the columns of one of them."""
    schema = history.console.schema()
    name = st.selectbox("Table", list(schema), key=TABLE, label_visibility="collapsed")
    columns = [{"column": column, "type": kind, "description": comment or ""} for column, kind, comment in schema[name]]
    st.dataframe(columns, hide_index=True, height=210, alt=f"Columns of {name}")


def _answer(history: History, asked: str) -> None:
    result = _result(history, asked)
    if isinstance(result, EngineError):
        notice(result)
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        found = f"{counted(result.num_rows, 'row')} in {quantity(result.elapsed_s, 's')}"
        as_of = f"history as of {local_time(result.as_of):%H:%M:%S}"
        st.caption(plain(f"{found}, {as_of}. {result.why_truncated}".strip()), width="stretch")
        drawn = _drawn(result.table)
        _downloads(result)
    if drawn is not None:
        charts.draw(sql_chart.chart(result.table, *drawn), "history_sql_figure")
    st.dataframe(result.table, hide_index=True, alt="Query result")


def _result(history: History, asked: str) -> Result | EngineError:
    """Return the result or the error; cached, so that the query is not rerun with every rerun of the page."""
    kept = st.session_state.get(RESULT)
    if kept is None or kept[0] != asked:
        kept = asked, _asked(history, asked)
        st.session_state[RESULT] = kept
    return kept[1]


def _asked(history: History, sql: str) -> Result | EngineError:
    try:
        result = history.console.run(sql, timeout_s=TIMEOUT_S)
    except EngineError as error:
        return error
    names = distinct(dict(enumerate(result.table.column_names)))
    return result._replace(table=result.table.rename_columns(list(names.values())))


def _drawn(table: pa.Table) -> tuple[str, str] | None:
    """Return the x and y columns of the chart; None if it is off, or there is no numeric column."""
    numbers = sql_chart.upwards(table)
    is_wanted = view.part("chart") == "1" and bool(numbers)
    st.session_state[CHART] = is_wanted
    if is_wanted:
        places = sql_chart.across(table)
        across = _column("x", places, next((name for name in places if name != numbers[0]), places[-1]))
        upwards = _column("y", numbers, numbers[0])
    st.toggle(
        "Chart", key=CHART, disabled=not numbers, help=None if numbers else "Needs a numeric column",
        on_change=lambda: view.put(chart="1" if st.session_state[CHART] else "", x="", y=""),
    )  # fmt: skip
    return (across, upwards) if is_wanted else None


def _column(axis: str, names: list[str], default: str) -> str:
    """Draw the choice of an axis's column, bound to the URL."""
    shown = view.part(axis) if view.part(axis) in names else default
    chosen: str = st.selectbox(
        axis, names, format_func=lambda name: f"{axis}: {name}", label_visibility="collapsed", width=180,
        **address.bound(axis, f"history_sql_{axis}", shown),
    )  # fmt: skip
    return chosen


def _downloads(result: Result) -> None:
    for kind, mime, make in (("CSV", "text/csv", as_csv), ("Parquet", "application/vnd.apache.parquet", as_parquet)):
        st.download_button(
            kind, partial(make, result.table), f"answer.{kind.lower()}", mime, key=f"history_sql_{kind}",
            icon=":material/download:", type="tertiary", on_click="ignore",
        )  # fmt: skip


def as_csv(table: pa.Table) -> bytes:
    """Return the rows as CSV."""
    return table_csv(table).encode("utf-8", "replace")


def as_parquet(table: pa.Table) -> bytes:
    """Return the rows as Parquet."""
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file)
    return file.getvalue()
