"""The History page: what comes from elsewhere, reference machines among it."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from engine.bench.planning.plan import Plan
from engine.history import INBOX, History, run_bytes
from engine.reference import NOTED_BY_HAND, reference_runs
from engine.runs import RunRecord
from engine.workbench import Workbench
from pages.parts.history import import_export
from pages.parts.plain import plain
from tests.pages.app import address, choose, open_page, press, said, table
from tests.pages.bench_harness import make_run
from tests.waiting import until


def page(**query: str) -> AppTest:
    return open_page("history.py", "History", **query)


def names(at: AppTest) -> list[str]:
    return list(table(at)["name"])


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
    assert "Line 1" in at.main.error[0].value and at.button(key="history_save_noted").disabled


def test_a_file_is_looked_at_and_taken_in_once(history: History, plan: Plan) -> None:
    run = make_run(plan, name="From elsewhere")
    at = page(view="sql")
    at.file_uploader(key="history_file_0").set_value(("run.zip", run_bytes(run), "application/zip")).run()
    assert not at.exception
    press(at, "history_take_in")
    assert address(at) == {"view": "runs"} and names(at) == ["From elsewhere"]
    at.file_uploader(key="history_file_1").set_value(("run.zip", run_bytes(run), "application/zip")).run()
    press(at, "history_take_in")
    assert names(at) == ["From elsewhere"] and "1 was already present" in said(at)


def test_pasted_lines_are_looked_at_and_taken_in(history: History) -> None:
    at = page()
    at.text_area(key="history_pasted").set_value("235 tokens in 80s = 2.93 tokens/s\n340 tokens in 40 s = 9 t/s").run()
    assert "timings noted by hand · 2 rows" in said(at)
    (preview,) = [frame.value for frame in at.main.dataframe if "time, s" in frame.value]
    assert list(preview["tokens"]) == [235, 340]
    press(at, "history_take_in")
    (row,) = history.find.runs().rows
    assert row["origin"] == NOTED_BY_HAND and "imported" in said(at)
    assert at.text_area(key="history_pasted").value == ""


def test_a_file_of_the_inbox_that_was_set_aside_is_reported(bench: Workbench, history: History) -> None:
    inbox = bench.settings.home / INBOX
    inbox.mkdir(exist_ok=True)
    (inbox / "00000000.trial").write_bytes(b"\x91" * 50_000)
    until(bench.kept.refusals, "the file is not set aside")
    assert plain("00000000.trial in the inbox could not be read") in said(page())


def test_what_no_importer_knows_is_refused_in_place(history: History) -> None:
    at = page()
    at.file_uploader(key="history_file_0").set_value(("x.csv", b"\x00\x01 nothing", "text/csv")).run()
    assert at.main.error and "history_take_in" not in [button.key for button in at.button]


@pytest.mark.parametrize("content", [b"", b" \n\n"])
def test_a_file_without_content_is_said_to_be_empty(history: History, content: bytes) -> None:
    at = page()
    at.text_area(key="history_pasted").set_value(" ").run()
    assert not at.main.error
    at.file_uploader(key="history_file_0").set_value(("x.csv", content, "text/csv")).run()
    (error,) = at.main.error
    assert plain("x.csv is empty.") in error.value
    assert "history_take_in" not in [button.key for button in at.button]


def slow_import(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> tuple[AppTest, threading.Event]:
    """A page that has begun to import a line, and the event that imports wait for in the middle."""
    go_on, take_in = threading.Event(), bench.importer.take_in

    def slow(history: History, name: str, data: bytes, tell: Callable[[float], None]) -> Any:
        tell(0.25)
        assert go_on.wait(60)
        tell(0.5)
        return take_in(history, name, data, tell)

    monkeypatch.setattr(bench.importer, "take_in", slow)
    monkeypatch.setattr(import_export, "AT_ONCE_S", 0.0)
    at = page(view="sql")
    at.text_area(key="history_pasted").set_value("235 tokens in 80s = 2.93 tokens/s").run()
    press(at, "history_take_in")
    return at, go_on


def test_a_file_that_takes_its_time_shows_how_far_it_is_and_can_be_stopped(
    bench: Workbench, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, go_on = slow_import(bench, monkeypatch)
    assert bench.machine.busy_with == "Importing pasted lines"
    assert bench.importing.running is not None and not history.find.runs().rows
    press(at, "history_import_stop")
    go_on.set()
    bench.importing.wait(60)
    at.run()
    assert plain("Importing pasted lines was stopped. Nothing was imported.") in said(at)
    assert not history.find.runs().rows and address(at) == {"view": "sql"}

    go_on.clear()
    press(at, "history_take_in")
    press(at, "history_take_in")
    assert "is still running" in at.main.error[0].value
    go_on.set()
    bench.importing.wait(60)
    at.run()
    assert len(history.find.runs().rows) == 1 and address(at) == {"view": "runs"}


def test_an_import_that_ends_leaves_a_tab_where_the_person_went(
    bench: Workbench, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, go_on = slow_import(bench, monkeypatch)
    at.segmented_control(key="history_view").set_value("trials").run()
    assert address(at) == {"view": "trials"}
    go_on.set()
    bench.importing.wait(60)
    at.run()
    assert len(history.find.runs().rows) == 1
    assert address(at) == {"view": "trials"}
    assert "imported" in said(at)
