"""Saved views: kept under a name, opened as they were, deleted with a way back."""

from pathlib import Path

import pytest

from engine.errors import ConfigError, HistoryError
from engine.history import History, saved_views
from tests.engine.history.trial_maker import NASTY

QUERY = {"view": "trials", "days": "7", "models": "a,b%2C", "text": NASTY}


def names(history: History) -> list[str]:
    return [view.name for view in history.views.all()]


def test_a_view_is_kept_as_it_was_and_replaced_by_its_name(path: Path) -> None:
    with History.open(path) as history:
        assert history.views.all() == []
        history.views.save("  Last week ", QUERY)
        history.views.save("errors", {"view": "runs"})
    with History.open(path) as history:
        errors, week = history.views.all()
        assert (week.name, week.query, errors.name) == ("Last week", QUERY, "errors")
        history.views.save("errors", {"view": "sql"})
        found = {view.name: view.query for view in history.views.all()}
        assert found == {"errors": {"view": "sql"}, "Last week": QUERY}


def test_a_deleted_view_comes_back_with_its_time(history: History) -> None:
    history.views.save("mine", QUERY)
    (view,) = history.views.all()
    assert history.views.delete("mine") and not history.views.delete("mine")
    assert history.views.all() == []
    history.views.restore(view)
    assert history.views.all() == [view]


def test_a_view_is_renamed_unless_the_name_is_taken_or_the_view_gone(history: History) -> None:
    for name in ("one", "two"):
        history.views.save(name, QUERY)
    history.views.rename("one", " three ")
    history.views.rename("two", "two")
    assert names(history) == ["three", "two"]
    with pytest.raises(ConfigError, match="another saved view"):
        history.views.rename("three", "two")
    with pytest.raises(HistoryError, match="renamed or deleted"):
        history.views.rename("one", "four")
    with pytest.raises(ConfigError, match="1 to 60"):
        history.views.rename("two", " ")
    assert names(history) == ["three", "two"]


@pytest.mark.parametrize(
    ("name", "query", "reason"),
    [
        ("", {}, "1 to 60"),
        ("x" * 61, {}, "up to 60"),
        ("a\udcff", {}, "UTF-8"),
        ("a", {"text": "x" * 20_001}, "up to 20,000"),
        ("a", {"text": "\udcff"}, "UTF-8"),
        ("a", {"n" * 61: ""}, "up to 60"),
        ("a", {str(number): "" for number in range(51)}, "up to 50"),
    ],
)
def test_what_is_no_view_is_refused(history: History, name: str, query: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        history.views.save(name, query)
    assert history.views.all() == []


def test_there_are_not_too_many(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_views, "MOST_VIEWS", 2)
    for name in "ab":
        history.views.save(name, {})
    with pytest.raises(ConfigError, match="delete one first"):
        history.views.save("c", {})
    history.views.save("a", QUERY)
    assert names(history) == ["a", "b"]
