"""The History page: questions in SQL."""

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest

from engine.history import History
from engine.runs import RunRecord
from pages.parts.history import sql_chart, sql_view
from tests.pages.app import address, open_page, press, primary, said


def page(**query: str) -> AppTest:
    return open_page("history.py", "History", **query)


def test_a_question_is_asked_and_its_address_answers_it(runs: list[RunRecord]) -> None:
    at = page(view="sql")
    assert primary(at) == ["Run"]
    at.text_area(key="history_sql_editor").set_value("SELECT name, 3 AS n FROM runs ORDER BY name")
    press(at, "history_sql_run")
    assert "3 rows in" in said(at)
    assert list(at.main.dataframe[1].value["name"]) == ["Monday", "Tuesday", "Wednesday"]
    again = page(**address(at))
    assert again.text_area(key="history_sql_editor").value == "SELECT name, 3 AS n FROM runs ORDER BY name"
    again.toggle(key="history_sql_chart").set_value(True).run()
    assert again.get("plotly_chart") and address(again)["chart"] == "1"
    assert {"CSV", "Parquet"} <= {button.label for button in again.get("download_button")}


def test_ready_made_questions_run_at_once(runs: list[RunRecord]) -> None:
    at = page(view="sql")
    ready = at.selectbox(key="history_sql_ready")
    for name in ready.options:
        at.selectbox(key="history_sql_ready").set_value(name).run()
        assert not at.exception and not at.main.error, (name, [error.value for error in at.main.error])


def test_what_writes_is_refused_with_its_reason(runs: list[RunRecord], history: History) -> None:
    at = page(view="sql", query="DELETE FROM runs")
    assert "only reads" in at.main.error[0].value.replace("\\", "")
    assert len(history.find.runs().rows) == 3


def test_an_error_points_at_its_place(history: History) -> None:
    (error,) = page(view="sql", query="SELEC 1").main.error
    assert error.value.endswith("\n\n```\nLINE 1: SELEC 1\n        ^^^^^\n```")
    (error,) = page(view="sql", query="SELEC 1 ```` \u202e <b>").main.error
    assert error.value.endswith("\n\n`````\nLINE 1: SELEC 1 ```` \ufffd <b>\n        ^^^^^\n`````")


def test_what_was_found_is_taken_away(runs: list[RunRecord], history: History) -> None:
    table = history.console.run("SELECT id, name, created_at, [1, 2] AS pair FROM runs ORDER BY name").table
    assert sql_view.as_csv(table).decode().splitlines()[1].startswith(f"{runs[0].id},Monday,2026-11-20 09:30:00")
    back = pq.read_table(io.BytesIO(sql_view.as_parquet(table)))
    assert back.column("name").to_pylist() == ["Monday", "Tuesday", "Wednesday"]


def test_columns_of_one_name_are_told_apart(history: History) -> None:
    shown = page(view="sql", query="SELECT 1 AS n, 2 AS n").main.dataframe[1].value
    assert list(shown) == ["n", "n (2)"]


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ({"word": ["a", "b"], "n": [1, 2]}, "bar"),
        ({"n": [1, 2], "m": [3.0, 4.0]}, "scatter"),
        ({"n": [1, 2]}, "scatter"),
    ],
)
def test_a_chart_is_drawn_as_its_columns_ask(columns: dict[str, list[Any]], kind: str) -> None:
    table = pa.table(columns)
    y = sql_chart.upwards(table)[-1]
    x = next(name for name in sql_chart.across(table) if name != y)
    figure = sql_chart.chart(table, x, y)
    assert [trace.type for trace in figure.data] == [kind]
