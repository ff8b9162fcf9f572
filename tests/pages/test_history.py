"""The History page without a browser: what is found and shown, what the address opens, what the buttons do."""

import io
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest

from engine.bench.planning.plan import Plan
from engine.errors import HistoryError
from engine.history import History, run_bytes
from engine.history.archive import import_archive
from engine.models import embedded_model
from engine.reference import NOTED_BY_HAND, reference_runs
from engine.runs import RunRecord
from engine.specs import Request, Sampling
from engine.workbench import Workbench
from engine.workbench.trials import Draft
from pages.parts.history import doors, sql_chart, sql_view
from pages.parts.plain import plain
from tests.pages.app import open_page, press
from tests.pages.bench_harness import make_run

HOSTILE = "<script>alert(1)</script> **bold** $x$ :red[no] \u202egnp"


@pytest.fixture
def history(bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    with History.open(tmp_path / "history.duckdb") as history:
        monkeypatch.setattr(bench, "history", history)
        yield history


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan(name="Mine", model=str(embedded_model()), axes={"layout": ("1x1", "1x2"), "parallel": (1, 4)}, rounds=6)


@pytest.fixture
def runs(history: History, plan: Plan) -> list[RunRecord]:
    """Three runs of one machine, a day between them, the newest last."""
    first = make_run(plan)
    made = [
        replace(make_run(plan, seed=day), created_at=first.created_at + timedelta(days=day), name=name)
        for day, name in enumerate(("Monday", "Tuesday", "Wednesday"))
    ]
    for run in made:
        samples = run.samples.copy()
        samples["end_to_end_per_s"] = samples["tokens_per_s"] * 0.9
        history.runs.keep(replace(run, samples=samples))
    return made


def page(**query: str) -> AppTest:
    return open_page("history.py", "History", **query)


def choose(at: AppTest, *rows: int) -> AppTest:
    """Choose rows of the first table."""
    key = next(frame.key for frame in at.main.dataframe if frame.key)
    at.session_state[key] = {"selection": {"rows": list(rows), "columns": [], "cells": []}}
    at.run()
    assert not at.exception, at.exception
    return at


def address(at: AppTest) -> dict[str, str]:
    return {name: value if isinstance(value, str) else value[0] for name, value in at.query_params.items()}


def said(at: AppTest) -> str:
    return "\n".join(element.value for element in [*at.main.caption, *at.main.markdown, *at.main.subheader])


def names(at: AppTest) -> list[str]:
    return list(table(at)["name"])


def table(at: AppTest) -> pd.DataFrame:
    """The first table that rows can be chosen in."""
    return next(frame.value for frame in at.main.dataframe if frame.key)


def primary(at: AppTest) -> list[str]:
    return [button.label for button in at.main.button if button.proto.type == "primary"]


# finding


def test_a_new_history_opens_on_the_reference_machines(history: History) -> None:
    at = page()
    assert address(at) == {"view": "runs"}
    assert "Nothing was measured here yet" in said(at)
    assert "nothing was measured here yet" in at.main.subheader[0].value
    assert at.get("plotly_chart")


def test_runs_are_listed_newest_first_beside_the_references(runs: list[RunRecord]) -> None:
    at = page()
    assert names(at) == ["Wednesday", "Tuesday", "Monday"]
    assert "end to end at best" in said(at) and "c7i" not in said(at)
    at.selectbox(key="history_order").set_value("name").run()
    assert names(at) == ["Monday", "Tuesday", "Wednesday"]
    assert address(at)["order"] == "name"


def test_columns_that_differ_are_shown_and_all_on_request(runs: list[RunRecord]) -> None:
    at = page()
    assert "samples" not in table(at) and "model" not in table(at)
    assert "all of them: model" in said(at)
    at.toggle(key="history_all").set_value(True).run()
    assert {"samples", "model", "machine"} <= set(table(at))
    assert address(at)["columns"] == "all"
    assert list(table(page(**address(at)))) == list(table(at))


def test_the_filter_is_in_the_address(runs: list[RunRecord], history: History) -> None:
    history.marks.tag("run", [runs[0].id], add=["night", "x"])
    history.marks.tag("run", [runs[1].id], add=["x"])
    at = page()
    at.text_input(key="history_filter_text").set_value("day").run()
    assert len(names(at)) == 3 and address(at)["text"] == "day"
    at.multiselect(key="history_filter_tags").set_value(["night"]).run()
    assert names(at) == ["Monday"]
    again = page(**address(at))
    assert names(again) == ["Monday"]
    assert again.multiselect(key="history_filter_tags").value == ["night"]
    press(again, "history_clear")
    assert len(names(again)) == 3 and address(again) == {"view": "runs"}


def test_a_filter_that_finds_nothing_says_so(runs: list[RunRecord]) -> None:
    at = page(view="runs", text="nowhere")
    assert "Nothing fits this filter" in said(at) and not at.main.dataframe


def test_dates_switches_and_ranges_narrow(runs: list[RunRecord], history: History) -> None:
    at = page()
    at.date_input(key="history_filter_since").set_value(runs[2].created_at.astimezone().date()).run()
    assert names(at) == ["Wednesday"]
    press(at, "history_clear")
    history.marks.star("run", [runs[1].id], True)
    at.toggle(key="history_filter_is_starred").set_value(True).run()
    assert names(at) == ["Tuesday"] and address(at)["is_starred"] == "1"
    press(at, "history_clear")
    at.multiselect(key="history_ranged").set_value(["parallel"]).run()
    at.number_input(key="history_filter_parallel_from").set_value(8.0).run()
    assert "Nothing fits" in said(at) and address(at)["ranges"] == "parallel:8.."
    at.multiselect(key="history_ranged").set_value([]).run()
    assert len(names(at)) == 3


def test_a_bad_address_is_said_and_everything_shown(runs: list[RunRecord]) -> None:
    at = page(view="runs", since="yesterday")
    assert "since" in at.main.error[0].value and len(names(at)) == 3
    assert address(page(view="nothing")) == {"view": "runs"}


def test_each_view_opens_as_it_was_left(runs: list[RunRecord]) -> None:
    at = page(view="runs", text="Monday")
    at.segmented_control(key="history_view").set_value("sql").run()
    assert address(at) == {"view": "sql"}
    at.segmented_control(key="history_view").set_value("runs").run()
    assert address(at) == {"view": "runs", "text": "Monday"} and names(at) == ["Monday"]


def test_many_runs_come_in_pages(history: History, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pages.parts.history.listing.PAGE", 2)
    first = make_run(replace(plan, rounds=1))
    for day in range(5):
        history.runs.keep(
            make_run(replace(plan, rounds=1), name=f"run {day}", created_at=first.created_at + timedelta(days=day))
        )
    at = page()
    assert names(at) == ["run 4", "run 3"] and "1–2 of 5 runs" in said(at)
    press(press(at, "history_chevron_right"), "history_chevron_right")
    assert names(at) == ["run 0"] and address(at)["page"] == "3"
    assert at.button(key="history_chevron_right").disabled
    assert names(page(view="runs", page="9" * 5000)) == ["run 4", "run 3"]


# what is done with a selection


def test_a_run_is_opened(runs: list[RunRecord]) -> None:
    at = choose(page(), 1)
    assert primary(at) == ["Open the run"]
    press(at, "history_do_open")
    assert [title.value for title in at.title] == ["Benchmark"]
    assert address(at) == {"run": runs[1].id}


def test_several_runs_are_compared(runs: list[RunRecord]) -> None:
    at = choose(page(), 0, 2)
    assert primary(at) == ["Compare"]
    press(at, "history_do_compare")
    assert address(at)["runs"] == f"{runs[2].id},{runs[0].id}"


def test_runs_are_starred_tagged_and_noted(runs: list[RunRecord], history: History) -> None:
    at = press(choose(page(), 0, 1), "history_do_is_starred")
    assert list(table(at)["★"]) == ["★", "★", ""]
    tags = next(widget for widget in at.main.multiselect if widget.key.startswith("history_do_tags"))
    tags.set_value(["kept"]).run()
    assert list(table(at)["tags"]) == ["kept", "kept", ""]
    assert history.marks.tags() == ["kept"]
    at = choose(page(), 2)
    at.text_area(key=f"history_do_note_{runs[0].id}").set_value("the first").run()
    assert list(table(at)["note"]) == ["", "", "the first"]
    at = choose(page(), 0)
    next(widget for widget in at.main.multiselect if widget.key.startswith("history_do_tags")).set_value(["a,b"]).run()
    assert "comma" in at.main.error[0].value


def test_what_is_archived_leaves_the_list_until_asked_for(runs: list[RunRecord]) -> None:
    at = press(choose(page(), 0), "history_do_is_archived")
    assert names(at) == ["Tuesday", "Monday"]
    at.toggle(key="history_filter_only_archived").set_value(True).run()
    assert names(at) == ["Wednesday"]
    press(choose(at, 0), "history_do_is_archived")
    assert len(names(page())) == 3
    assert "lie in the archive" in said(press(choose(page(), 0, 1, 2), "history_do_is_archived"))


def test_deleting_is_undone(runs: list[RunRecord]) -> None:
    at = press(choose(page(), 0, 1), "history_do_delete")
    assert names(at) == ["Monday"] and "2 runs were deleted" in said(at)
    press(at, "history_undo")
    assert len(names(at)) == 3 and "deleted" not in said(at)


def test_a_choice_belongs_to_the_rows_it_was_made_of(runs: list[RunRecord], history: History) -> None:
    at = choose(page(), 0)
    history.runs.delete(runs[2].id)
    at.run()
    assert names(at) == ["Tuesday", "Monday"]
    assert "history_do_delete" not in [button.key for button in at.button]


def test_a_run_that_another_tab_deleted_is_said_to_be_gone(runs: list[RunRecord], history: History) -> None:
    at = choose(page(), 0)
    history.runs.delete(runs[2].id)
    history.gc()
    press(at, "history_do_delete")
    assert "gone already" in at.main.error[0].value and names(at) == ["Tuesday", "Monday"]


def test_chosen_runs_are_exported_for_another_workbench(
    runs: list[RunRecord], history: History, tmp_path: Path
) -> None:
    at = choose(page(), 0, 1)
    assert "Export" in [button.label for button in at.get("download_button")]
    data = doors.archive_of(history, run_ids=[runs[0].id, runs[1].id])
    with History.open(tmp_path / "other.duckdb") as other:
        assert import_archive(other, data).num_runs == 2
        assert {row["id"] for row in other.find.runs().rows} == {runs[0].id, runs[1].id}


# configurations and their trend


def test_configurations_are_listed_with_their_medians(runs: list[RunRecord]) -> None:
    at = page(view="runs", rows="cells", order="-tokens_per_s")
    shown = table(at)
    assert len(shown) == 12 and shown["total speed, tok/s"].is_monotonic_decreasing
    assert set(shown["configuration"]) == {cell.label for cell in runs[0].cells}
    press(choose(at, 0, 1), "history_do_compare")
    assert len(address(at)["cells"].split(",")) == 2


def test_a_configuration_over_time(runs: list[RunRecord]) -> None:
    at = press(choose(page(), 0), "history_trend")
    assert address(at)["trend"] == f"{runs[2].id}.0"
    assert at.main.subheader and at.get("plotly_chart")
    assert len(table(at)) == 3
    at.selectbox(key="history_cell").set_value(2).run()
    assert address(at)["trend"] == f"{runs[2].id}.2"
    at.selectbox(key="history_metric").set_value("ttft_s").run()
    assert address(at)["metric"] == "ttft_s" and not at.exception
    at.selectbox(key="history_metric").set_value("gap_p99_s").run()
    assert "was not measured" in said(at)
    press(at, "history_back")
    assert "trend" not in address(at)


def test_the_trend_of_a_run_that_is_gone_says_so(runs: list[RunRecord], history: History) -> None:
    history.runs.delete(runs[0].id)
    assert "deleted" in page(view="runs", trend=f"{runs[0].id}.0").main.error[0].value
    assert "no configuration" in page(view="runs", trend=f"{runs[1].id}.99").main.error[0].value


# trials


@pytest.fixture
def trials(bench: Workbench, history: History) -> list[str]:
    """Ids of three trials of the small model, the newest last."""
    made = []
    for seed, prompt in enumerate(("Once upon a time", "The king said", "A little dog")):
        draft = Draft(prompt, (), Sampling(seed=seed), Request(max_tokens=6, top_k=5), True)
        trial = bench.submit(draft)
        trial.job.result(timeout=60)
        end = time.monotonic() + 20
        while not trial.is_stored:
            assert time.monotonic() < end
            time.sleep(0.01)
        made.append(trial.id)
    return made


def test_trials_are_found_by_their_text_and_opened(trials: list[str]) -> None:
    at = page(view="trials")
    shown = table(at)
    assert list(shown["prompt"]) == ["A little dog", "The king said", "Once upon a time"]
    assert shown["decode, tok/s"].min() > 0
    at.text_input(key="history_filter_text").set_value("king").run()
    assert list(table(at)["prompt"]) == ["The king said"]
    press(choose(at, 0), "history_do_open")
    assert [title.value for title in at.title] == ["Prompt lab"] and address(at) == {"trial": trials[1]}


def test_trials_are_deleted_and_restored_and_compared(trials: list[str], bench: Workbench) -> None:
    at = press(choose(page(view="trials"), 0), "history_do_delete")
    assert len(table(at)) == 2 and bench.history.trial(trials[2]) is None
    press(at, "history_undo")
    assert len(table(at)) == 3
    press(choose(at, 0, 1), "history_do_compare")
    assert address(at)["trials"] == f"{trials[2]},{trials[1]}"


def test_the_least_confident_and_the_slowest_tokens_stand_out(trials: list[str]) -> None:
    at = page(view="trials", rows="unsure")
    unsure = table(at)
    assert unsure["p, %"].is_monotonic_increasing and len(unsure) == 18
    at.segmented_control(key="history_rows").set_value("slow").run()
    assert table(at)["time, ms"].is_monotonic_decreasing
    trial = table(at)["trial"][0]
    press(choose(at, 0), "history_open_token")
    assert [title.value for title in at.title] == ["Prompt lab"]
    assert trial in {"A little dog", "The king said", "Once upon a time"}


def test_no_trial_leads_to_the_prompt_lab(history: History) -> None:
    assert "No trial was kept yet" in said(page(view="trials"))


# references and notes


def test_this_machine_stands_beside_the_references(runs: list[RunRecord]) -> None:
    at = page(view="reference")
    assert "end to end at best" in at.main.subheader[0].value
    shown = table(at)
    assert {"c7i.4xlarge", "inf1.2xlarge"} <= set(shown["machine"])
    assert shown["end to end, tok/s"].max() == pytest.approx(840 / 45)
    assert not any("PSS" in column or column.startswith("memory (") for column in shown)
    press(choose(at, 0), "history_compare_reference")
    ours, theirs = address(at)["runs"].split(",")
    assert ours in {run.id for run in runs} and theirs in {run.id for run in reference_runs()}


def test_lines_are_read_and_saved_as_noted_by_hand(history: History) -> None:
    at = page(view="reference")
    at.text_input(key="history_machine").set_value("my box").run()
    at.text_area(key="history_lines").set_value("235 tokens in 80s = 2.93 tokens/s (4 threads)\n100 tok, 20 s").run()
    assert any("235" in frame.value.to_string() for frame in at.main.dataframe)
    press(at, "history_save_noted")
    assert plain("2 timings of my box: saved as noted by hand.") in said(at)
    (row,) = history.find.runs().rows
    assert row["origin"] == NOTED_BY_HAND
    at.text_area(key="history_lines").set_value("nothing of use").run()
    assert "line 1" in at.main.error[0].value and at.button(key="history_save_noted").disabled


# SQL


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


# import


def test_a_file_is_looked_at_and_taken_in_once(history: History, plan: Plan) -> None:
    run = make_run(plan, name="From elsewhere")
    at = page(view="sql")
    at.file_uploader(key="history_file_0").set_value(("run.zip", run_bytes(run), "application/zip")).run()
    assert not at.exception
    press(at, "history_take_in")
    assert address(at) == {"view": "runs"} and names(at) == ["From elsewhere"]
    at.file_uploader(key="history_file_1").set_value(("run.zip", run_bytes(run), "application/zip")).run()
    press(at, "history_take_in")
    assert names(at) == ["From elsewhere"] and "1 was here already" in said(at)


def test_pasted_lines_are_looked_at_and_taken_in(history: History) -> None:
    at = page()
    at.text_area(key="history_pasted").set_value("235 tokens in 80s = 2.93 tokens/s\n340 tokens in 40 s = 9 t/s").run()
    assert "timings noted by hand · 2 rows" in said(at)
    (preview,) = [frame.value for frame in at.main.dataframe if "time, s" in frame.value]
    assert list(preview["tokens"]) == [235, 340]
    press(at, "history_take_in")
    (row,) = history.find.runs().rows
    assert row["origin"] == NOTED_BY_HAND and "taken in" in said(at)
    assert at.text_area(key="history_pasted").value == ""


def test_what_no_door_knows_is_refused_in_place(history: History) -> None:
    at = page()
    at.file_uploader(key="history_file_0").set_value(("x.csv", b"\x00\x01 nothing", "text/csv")).run()
    assert at.main.error and "history_take_in" not in [button.key for button in at.button]


def test_hostile_text_stays_text(history: History, plan: Plan) -> None:
    run = make_run(replace(plan, name=HOSTILE), outcome={"sentence": HOSTILE})
    history.runs.keep(replace(run, cells=tuple(replace(cell, label=HOSTILE) for cell in run.cells)))
    history.marks.tag("run", [run.id], add=[HOSTILE[:40]])
    at = choose(page(), 0)
    shown = said(at) + "".join(button.label for button in at.main.button)
    assert "<script>" not in shown and "\u202e" not in shown and "**bold" not in shown
    trend = page(view="runs", trend=f"{run.id}.0", metric="tokens_per_s")
    assert "<script>" not in said(trend)


def test_a_history_that_cannot_be_read_is_said_in_place(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise HistoryError("The disk is full.")

    monkeypatch.setattr(history.find, "choices", fail)
    assert "The disk is full" in page().main.error[0].value


def test_without_a_history_the_reason_is_said(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "history", None)
    monkeypatch.setattr(bench, "history_error", HistoryError("The file is in use by process 7."))
    assert "process 7" in page().main.error[0].value
