"""The History page: questions in SQL."""

import io
import re
from datetime import datetime, time, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest

from engine.history import History
from engine.history.console import READY, Console
from engine.runs import RunRecord
from pages.parts.history import sql_chart, sql_view
from tests.pages.app import address, open_page, press, primary, said


def page(**query: str) -> AppTest:
    return open_page("history.py", "History", **query)


def ask(sql: str) -> AppTest:
    """The page after a person ran this query."""
    at = page(view="sql")
    at.text_area(key="history_sql_editor").set_value(sql)
    return press(at, "history_sql_run")


def test_a_query_is_run_and_its_address_brings_it_back(runs: list[RunRecord]) -> None:
    at = page(view="sql")
    assert primary(at) == ["Run"]
    at.text_area(key="history_sql_editor").set_value("SELECT name, 3 AS n FROM runs ORDER BY name")
    press(at, "history_sql_run")
    assert "3 rows in" in said(at)
    assert list(at.main.dataframe[1].value["name"]) == ["Monday", "Tuesday", "Wednesday"]
    again = page(**address(at))
    assert again.text_area(key="history_sql_editor").value == "SELECT name, 3 AS n FROM runs ORDER BY name"
    press(again, "history_sql_run")
    again.toggle(key="history_sql_chart").set_value(True).run()
    assert again.get("plotly_chart") and address(again)["chart"] == "1"
    assert {"CSV", "Parquet"} <= {button.label for button in again.download_button}


def test_ready_made_questions_run_at_once(runs: list[RunRecord]) -> None:
    at = page(view="sql")
    ready = at.selectbox(key="history_sql_ready")
    for name in ready.options:
        at.selectbox(key="history_sql_ready").set_value(name).run()
        assert not at.exception and not at.main.error, (name, [error.value for error in at.main.error])


@pytest.mark.parametrize("sql", [*(sql for _, sql in READY), "SELECT 1", "DELETE FROM runs", "SELECT pg_sleep(1000)"])
def test_an_address_fills_the_editor_and_runs_nothing(
    runs: list[RunRecord], history: History, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    monkeypatch.setattr(Console, "run", lambda *_, **__: pytest.fail("a link ran SQL"))
    at = page(view="sql", query=sql, chart="1")
    assert at.text_area(key="history_sql_editor").value == sql
    assert "press Run" in said(at)
    at.run()
    at.selectbox(key="history_sql_table").set_value("cells").run()
    assert not at.exception and not at.main.error


def test_the_page_says_as_of_when_it_answers(runs: list[RunRecord], history: History) -> None:
    before = datetime.now().replace(microsecond=0)
    shown = re.search(r"history as of (\d\d:\d\d:\d\d)", re.sub(r"[\\\u2060]", "", said(ask("FROM runs"))))
    assert shown
    when = datetime.combine(before.date(), time.fromisoformat(shown[1]))
    assert min((when - before) % timedelta(days=1), (before - when) % timedelta(days=1)) < timedelta(minutes=10)


def test_what_writes_is_refused_with_its_reason(runs: list[RunRecord], history: History) -> None:
    at = ask("DELETE FROM runs")
    assert "is read-only" in at.main.error[0].value.replace("\\", "")
    assert len(history.find.runs().rows) == 3


def test_an_error_points_at_its_place(history: History) -> None:
    (error,) = ask("SELEC 1").main.error
    assert error.value.endswith("\n\n```\nLINE 1: SELEC 1\n        ^^^^^\n```")
    (error,) = ask("SELEC 1 ```` \u202e <b>").main.error
    assert error.value.endswith("\n\n`````\nLINE 1: SELEC 1 ```` \ufffd <b>\n        ^^^^^\n`````")


def test_what_was_found_is_taken_away(runs: list[RunRecord], history: History) -> None:
    table = history.console.run("SELECT id, name, created_at, [1, 2] AS pair FROM runs ORDER BY name").table
    assert sql_view.as_csv(table).decode().splitlines()[1].startswith(f"{runs[0].id},Monday,2026-11-20T09:30:00,")
    back = pq.read_table(io.BytesIO(sql_view.as_parquet(table)))
    assert back.column("name").to_pylist() == ["Monday", "Tuesday", "Wednesday"]


def test_columns_of_one_name_are_told_apart(history: History) -> None:
    shown = ask("SELECT 1 AS n, 2 AS n").main.dataframe[1].value
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
