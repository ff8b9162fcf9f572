"""Chart of any SQL result: one column by another, drawn according to their types."""

from typing import Any

import plotly.graph_objects as go
import pyarrow as pa
import pyarrow.types as kinds

from pages.parts.benchmark.chart_pen import ACCENT, Pen, blank

MOST_BARS, MANY_POINTS, ROW = 40, 1_000, "row"


def across(table: pa.Table) -> list[str]:
    """Return the columns for the x axis: times, words and numbers, then the row number."""
    return [field.name for field in table.schema if _is_place(field.type)] + [ROW]


def upwards(table: pa.Table) -> list[str]:
    """Return the numeric columns; empty if there are no rows."""
    return [field.name for field in table.schema if _is_number(field.type)] if table.num_rows else []


def chart(table: pa.Table, x: str, y: str) -> go.Figure:
    """Draw `y` by `x`: bars if x is text, a line if it is time, else dots."""
    values, places = _values(table, y), _values(table, x)
    if places and isinstance(next((place for place in places if place is not None), None), str):
        return _bars(x, y, [Pen.text(str(place)) for place in places[:MOST_BARS]], values[:MOST_BARS], len(places))
    is_line = x != ROW and _is_time(table.schema.field(x).type)
    figure = blank(f"{y} by {x}", Pen.text(x))
    add = figure.add_scattergl if len(values) > MANY_POINTS else figure.add_scatter
    add(
        x=places, y=values, mode="lines+markers" if is_line else "markers", marker={"color": ACCENT, "size": 6},
        line={"color": ACCENT, "width": 2},
    )  # fmt: skip
    figure.update_yaxes(title=Pen.text(y))
    return figure


def _bars(x: str, y: str, labels: list[str], values: list[Any], num_rows: int) -> go.Figure:
    title = f"{y} by {x}" + (f", the first {MOST_BARS} of {num_rows:,} rows" if num_rows > MOST_BARS else "")
    figure = blank(title, Pen.text(y), height=120 + 24 * len(labels))
    places = list(range(len(labels)))
    figure.add_bar(x=values, y=places, orientation="h", marker={"color": ACCENT})
    figure.update_yaxes(tickvals=places, ticktext=labels, autorange="reversed", showgrid=False)
    return figure


def _values(table: pa.Table, name: str) -> list[Any]:
    if name == ROW and ROW not in table.column_names:
        return list(range(1, table.num_rows + 1))
    column = table.column(table.column_names.index(name))
    values: list[Any] = (column.cast(pa.float64()) if kinds.is_decimal(column.type) else column).to_pylist()
    return values


def _is_number(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (kinds.is_integer, kinds.is_floating, kinds.is_decimal))


def _is_time(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (kinds.is_timestamp, kinds.is_date))


def _is_place(kind: pa.DataType) -> bool:
    return _is_number(kind) or _is_time(kind) or kinds.is_string(kind)
