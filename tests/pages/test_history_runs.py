"""The History page: runs that are found, chosen and marked."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from streamlit.testing.v1 import AppTest

from engine.bench.planning.plan import Plan
from engine.errors import HistoryError
from engine.history import History
from engine.runs import RunRecord
from engine.workbench import Workbench
from tests.pages.app import HOSTILE, address, choose, open_page, press, primary, said, table
from tests.pages.bench_harness import make_run


def page(**query: str) -> AppTest:
    return open_page("history.py", "History", **query)


def names(at: AppTest) -> list[str]:
    return list(table(at)["name"])


def test_a_new_history_opens_on_the_reference_machines(history: History) -> None:
    at = page()
    assert address(at) == {"view": "runs"}
    assert "No runs yet" in said(at)
    assert [link.proto.label for link in at.main.get("page_link")] == ["Measure this machine"]
    assert "none of your runs has such a model" in at.main.subheader[0].value
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
    assert "all: model" in said(at)
    at.toggle(key="history_all").set_value(True).run()
    assert {"samples", "model", "machine"} <= set(table(at))
    assert address(at)["columns"] == "all"
    assert list(table(page(**address(at)))) == list(table(at))


def test_layouts_are_written_as_on_other_pages(runs: list[RunRecord]) -> None:
    assert set(table(page(rows="cells"))["layout"]) == {"1 × 1", "1 × 2"}


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
    assert "Nothing matches this filter" in said(at) and not at.main.dataframe


def test_dates_switches_and_ranges_narrow(runs: list[RunRecord], history: History) -> None:
    first, last = (run.created_at.astimezone().date() for run in (runs[0], runs[2]))
    at = page(since=str(first))
    at.date_input(key="history_filter_since").set_value(last).run()
    assert names(at) == ["Wednesday"]
    press(at, "history_clear")
    history.marks.star("run", [runs[1].id], True)
    at.toggle(key="history_filter_is_starred").set_value(True).run()
    assert names(at) == ["Tuesday"] and address(at)["is_starred"] == "1"
    press(at, "history_clear")
    at.multiselect(key="history_ranged").set_value(["parallel"]).run()
    at.number_input(key="history_filter_parallel_from").set_value(8.0).run()
    assert "Nothing matches" in said(at) and address(at)["ranges"] == "parallel:8.."
    at.multiselect(key="history_ranged").set_value([]).run()
    assert len(names(at)) == 3


def test_periods_are_in_front_and_in_the_address(runs: list[RunRecord], history: History, plan: Plan) -> None:
    today = make_run(replace(plan, rounds=1), name="Today", created_at=datetime.now(UTC))
    history.runs.keep(today)
    at = page()
    period = at.segmented_control(key="history_period")
    assert period.options == ["Any time", "Today", "7 days", "30 days", "Between"] and period.value == "0"
    at.segmented_control(key="history_period").set_value("1").run()
    assert names(at) == ["Today"] and address(at) == {"view": "runs", "days": "1"}
    again = page(**address(at))
    assert names(again) == ["Today"] and again.segmented_control(key="history_period").value == "1"
    at.segmented_control(key="history_period").set_value("between").run()
    day = str(datetime.now().astimezone().date())
    assert address(at) == {"view": "runs", "since": day, "until": day} and names(at) == ["Today"]
    at.date_input(key="history_filter_since").set_value(runs[1].created_at.astimezone().date()).run()
    assert names(at) == ["Today", "Wednesday", "Tuesday"]
    at.segmented_control(key="history_period").set_value("0").run()
    assert len(names(at)) == 4 and address(at) == {"view": "runs"}
    assert "14 days" in page(days="14").segmented_control(key="history_period").options


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
    tags = next(widget for widget in at.main.multiselect if widget.key and widget.key.startswith("history_do_tags"))
    tags.set_value(["kept"]).run()
    assert list(table(at)["tags"]) == ["kept", "kept", ""]
    assert history.marks.tags() == ["kept"]
    at = choose(page(), 2)
    at.text_area(key=f"history_do_note_{runs[0].id}").set_value("the first").run()
    assert list(table(at)["note"]) == ["", "", "the first"]
    at = choose(page(), 0)
    tags = next(widget for widget in at.main.multiselect if widget.key and widget.key.startswith("history_do_tags"))
    tags.set_value(["a,b"]).run()
    assert "comma" in at.main.error[0].value


def test_what_is_archived_leaves_the_list_until_asked_for(runs: list[RunRecord]) -> None:
    at = press(choose(page(), 0), "history_do_is_archived")
    assert names(at) == ["Tuesday", "Monday"]
    at.toggle(key="history_filter_only_archived").set_value(True).run()
    assert names(at) == ["Wednesday"]
    press(choose(at, 0), "history_do_is_archived")
    assert len(names(page())) == 3
    assert "All are archived" in said(press(choose(page(), 0, 1, 2), "history_do_is_archived"))


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
    assert "already deleted" in at.main.error[0].value and names(at) == ["Tuesday", "Monday"]


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
    monkeypatch.setattr(bench.kept, "history", None)
    monkeypatch.setattr(bench.kept, "error", HistoryError("The file is in use by process 7."))
    assert "process 7" in page().main.error[0].value
