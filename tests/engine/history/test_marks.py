"""Stars, archive marks, notes and tags: saved, bounded, and purged with what they mark."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.history import History
from engine.history.marks import MOST_TAGS, NOTE_CHARACTERS, TAG_CHARACTERS
from tests.engine.history.run_maker import make_run
from tests.engine.history.trial_maker import NASTY, make_trial, uuid7


def marks_of(history: History) -> dict[str, tuple[bool, bool, str, list[str]]]:
    """Return the marks of every run by id."""
    rows = history.find.runs(limit=100).rows
    return {row["id"]: (row["is_starred"], row["is_archived"], row["note"], row["tags"]) for row in rows}


def test_marks_are_kept_one_by_one(history: History, path: Path) -> None:
    run, other = make_run(), make_run()
    for each in (run, other):
        history.runs.keep(each)
    assert marks_of(history) == dict.fromkeys((run.id, other.id), (False, False, "", []))
    history.marks.star("run", [run.id], True)
    history.marks.note("run", run.id, NASTY)
    history.marks.tag("run", [run.id, other.id], add=["night", " paris "])
    history.marks.tag("run", [run.id], add=["night"], remove=["paris", "unknown"])
    expected = {run.id: (True, False, NASTY, ["night"]), other.id: (False, False, "", ["night", "paris"])}
    assert marks_of(history) == expected
    assert history.marks.tags() == ["night", "paris"]
    history.close()
    with History.open(path) as again:
        assert marks_of(again) == expected
        again.marks.star("run", [run.id, other.id], False)
        again.marks.note("run", run.id, "")
        assert marks_of(again)[run.id] == (False, False, "", ["night"])


def test_marks_of_a_run_are_not_those_of_a_trial(history: History) -> None:
    run, trial = make_run(), make_trial()
    history.runs.keep(run)
    history.record(trial).result(60)
    history.marks.tag("trial", [trial.id], add=["only here"])
    history.marks.star("trial", [run.id], True)
    assert marks_of(history) == {run.id: (False, False, "", [])}
    (row,) = history.find.trials().rows
    assert (row["tags"], row["is_starred"]) == (["only here"], False)


def test_what_is_purged_takes_its_marks_along(history: History) -> None:
    kept, gone, trial = make_run(), make_run(), make_trial()
    for run in (kept, gone):
        history.runs.keep(run)
    history.record(trial).result(60)
    history.marks.tag("run", [kept.id], add=["kept"])
    history.marks.tag("run", [gone.id], add=["gone"])
    history.marks.tag("trial", [trial.id], add=["gone too"])
    history.runs.delete(gone.id)
    history.delete(trial.id)
    history.runs.restore(gone.id)
    assert marks_of(history)[gone.id][3] == ["gone"]
    history.runs.delete(gone.id)
    assert history.gc() == 2
    assert history.marks.tags() == ["kept"]


def test_what_cannot_be_a_mark_is_refused_and_changes_nothing(history: History) -> None:
    run = make_run()
    history.runs.keep(run)
    history.marks.tag("run", [run.id], add=[f"tag {number}" for number in range(MOST_TAGS)])
    before = marks_of(history)
    refused: dict[str, Callable[[], object]] = {
        "kind": lambda: history.marks.star("sample", [run.id], True),  # type: ignore[arg-type]
        "id": lambda: history.marks.star("run", [run.id, "junk"], True),
        "ids": lambda: history.marks.archive("run", [uuid7() for _ in range(10_001)], True),
        "note": lambda: history.marks.note("run", run.id, "a" * (NOTE_CHARACTERS + 1)),
        "tag": lambda: history.marks.tag("run", [run.id], add=["a" * (TAG_CHARACTERS + 1)]),
        "tag ": lambda: history.marks.tag("run", [run.id], add=["one, two"]),
        "tag  ": lambda: history.marks.tag("run", [run.id], add=["  "]),
        "tags": lambda: history.marks.tag("run", [uuid7(), run.id], add=["one more"]),
        "note ": lambda: history.marks.note("run", run.id, "\udcff"),
    }
    for name, call in refused.items():
        with pytest.raises(ConfigError, match=f"^{name.strip()}"):
            call()
    assert marks_of(history) == before


def test_nothing_is_marked_when_there_are_no_ids(history: History) -> None:
    history.marks.star("run", [], True)
    history.marks.tag("run", [], add=["lonely"])
    assert history.marks.tags() == []
