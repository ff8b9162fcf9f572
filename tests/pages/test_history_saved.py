"""The History page: saved views that are opened by one click, renamed, and deleted with a way back."""

import pytest
from streamlit.testing.v1 import AppTest

from engine.errors import HistoryError
from engine.history import History
from engine.runs import RunRecord
from pages.parts.plain import plain
from tests.pages.app import HOSTILE, address, open_page, press, said, table


def page(**query: str) -> AppTest:
    return open_page("history.py", "History", **query)


def saved(at: AppTest, name: str) -> AppTest:
    """The page after what it shows was saved as a view of this name."""
    at.text_input(key="history_saved_new").set_value(name).run()
    return press(at, "history_save_view_now")


def pills(at: AppTest) -> list[str]:
    return [option for group in at.main.pills if group.key == "history_saved" for option in group.options]


def test_a_view_is_saved_and_opened_by_one_click(runs: list[RunRecord], history: History) -> None:
    at = page(text="Monday", order="name")
    assert at.button(key="history_save_view_now").disabled and pills(at) == []
    at = saved(at, "Mondays")
    (view,) = history.views.all()
    assert view.query == {"view": "runs", "text": "Monday", "order": "name"}
    assert pills(at) == ["Mondays"]
    press(at, "history_clear")
    assert len(table(at)) == 3
    at = page(view="trials")
    at.pills(key="history_saved").set_value("Mondays").run()
    assert address(at) == view.query and list(table(at)["name"]) == ["Monday"]


def test_a_view_is_renamed_deleted_and_restored(runs: list[RunRecord], history: History) -> None:
    at = saved(page(days="7"), "week")
    at.text_input(key="history_saved_nameweek").set_value("Last week").run()
    assert pills(at) == ["Last week"]
    press(at, "history_delete_view")
    assert pills(at) == [] and "Last week" in said(at) and "was deleted" in said(at)
    press(at, "history_undo_view")
    assert pills(at) == ["Last week"] and "was deleted" not in said(at)
    assert [view.query for view in history.views.all()] == [{"view": "runs", "days": "7"}]


def test_a_name_that_is_taken_is_said_and_nothing_lost(runs: list[RunRecord], history: History) -> None:
    for name in ("one", "two"):
        at = saved(page(text=name), name)
    at.text_input(key="history_saved_nametwo").set_value("one").run()
    assert "another saved view" in at.main.error[0].value
    assert [view.name for view in history.views.all()] == ["one", "two"]


def test_hostile_names_stay_text(runs: list[RunRecord], history: History) -> None:
    history.views.save(HOSTILE, {"view": "runs"})
    at = page()
    assert pills(at) == [plain(HOSTILE)]
    press(at, "history_delete_view")
    assert "<script>" not in said(at) and "**bold" not in said(at)


def test_views_that_cannot_be_read_are_said_and_the_runs_are_there(
    runs: list[RunRecord], history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise HistoryError("The disk is full.")

    monkeypatch.setattr(history.views, "all", fail)
    at = page()
    assert "The disk is full" in at.main.error[0].value and len(table(at)) == 3
