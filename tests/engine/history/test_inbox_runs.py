"""Inbox: runs, with their tags, and comparisons handed over as files."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from engine.errors import HistoryError
from engine.history import History, Inbox, refusals, write_inbox
from engine.history.filters import Filter
from engine.history.inbox import TAGS
from engine.history.marks import MOST_TAGS
from tests.engine.history.run_maker import assert_same_run, make_run
from tests.engine.history.test_comparisons import made as made_comparison
from tests.engine.history.trial_maker import NASTY, make_trial, uuid7


def test_a_run_is_handed_over_whole(history: History, inbox: Path) -> None:
    run, trial = make_run(20), make_trial()
    path = write_inbox(inbox, run)
    write_inbox(inbox, trial)
    assert Inbox(inbox).take(history) == [trial.id, run.id]
    assert list(inbox.iterdir()) == []
    assert_same_run(history.runs.run(run.id), run)
    assert write_inbox(inbox, replace(run, name="another")) == path
    assert Inbox(inbox).take(history) == [run.id]
    assert_same_run(history.runs.run(run.id), run)


def test_the_tags_of_a_run_are_handed_over_with_it(history: History, inbox: Path) -> None:
    run, other = make_run(2), make_run(2)
    write_inbox(inbox, run, run_tags=["2026-11-28 09:30:05 nodes", "b"])
    write_inbox(inbox, other)
    assert set(Inbox(inbox).take(history)) == {run.id, other.id}
    assert list(inbox.iterdir()) == []
    assert history.marks.tags_of("run", run.id) == ["2026-11-28 09:30:05 nodes", "b"]
    assert history.marks.tags_of("run", other.id) == []


def test_the_tags_of_a_run_are_added_to_its_marks(history: History, inbox: Path) -> None:
    run = make_run(2)
    history.runs.put(run)
    history.marks.star("run", [run.id], True)
    history.marks.tag("run", [run.id], add=["mine", "b"])
    write_inbox(inbox, run, run_tags=["2026-11-28 09:30:05 nodes", "b"])
    assert Inbox(inbox).take(history) == [run.id] and list(inbox.iterdir()) == []
    assert history.marks.tags_of("run", run.id) == ["2026-11-28 09:30:05 nodes", "b", "mine"]
    assert [row["is_starred"] for row in history.find.runs(Filter(tags=("mine",))).rows] == [True]


def test_a_run_whose_tags_would_be_too_many_is_set_aside_with_them(history: History, inbox: Path) -> None:
    run = make_run(2)
    history.runs.put(run)
    history.marks.tag("run", [run.id], add=[f"mine {number}" for number in range(MOST_TAGS)])
    path = write_inbox(inbox, run, run_tags=["one more"])
    assert Inbox(inbox).take(history) == []
    assert f"would have {MOST_TAGS + 1}" in refusals(inbox)[path.name]
    assert len(history.marks.tags_of("run", run.id)) == MOST_TAGS


@pytest.mark.parametrize("fault", ["garbage", "another run", "too many", "too long", "a link"])
def test_a_run_whose_tags_have_a_fault_is_set_aside_with_them(history: History, inbox: Path, fault: str) -> None:
    path = write_inbox(inbox, make_run(2), run_tags=["mine"])
    tags = path.with_name(path.name + TAGS)
    mark = msgspec.json.decode(tags.read_bytes())
    wrong: dict[str, dict[str, object]] = {
        "another run": {"id": uuid7()},
        "too many": {"tags": ["x"] * 51},
        "too long": {"tags": ["x" * 51]},
    }
    if fault == "a link":
        tags.rename(inbox / "elsewhere")
        tags.symlink_to(inbox / "elsewhere")
    else:
        tags.write_bytes(b"{" if fault == "garbage" else msgspec.json.encode({**mark, **wrong[fault]}))
    assert Inbox(inbox).take(history) == []
    assert list(refusals(inbox)) == [path.name]
    assert {one.name for one in (inbox / "refused").iterdir()} >= {path.name, tags.name}


def test_a_comparison_is_handed_over_whole(history: History, inbox: Path) -> None:
    record = made_comparison(name=NASTY)
    trial = make_trial()
    write_inbox(inbox, record)
    write_inbox(inbox, trial)
    assert Inbox(inbox).take(history) == [trial.id, record.id]
    assert list(inbox.iterdir()) == []
    assert history.comparisons.comparison(record.id) == record
    write_inbox(inbox, replace(record, name="another"))
    Inbox(inbox).take(history)
    assert history.comparisons.comparison(record.id) == record


@pytest.mark.parametrize("fault", ["another id", "garbage", "unfinished", "other answers"])
def test_a_comparison_with_a_fault_is_set_aside(history: History, inbox: Path, fault: str) -> None:
    record = made_comparison()
    path = write_inbox(inbox, record)
    content = path.read_bytes()
    match fault:
        case "another id":
            path = path.rename(inbox / f"{uuid7()}.comparison.json")
        case "garbage":
            path.write_bytes(b"garbage")
        case "unfinished":
            path.write_bytes(content[: len(content) // 2])
        case _:
            path.write_bytes(content.replace(b'"arm":1', b'"arm":7'))
    assert Inbox(inbox).take(history) == []
    assert history.comparisons.recent() == []
    assert sorted(file.name for file in (inbox / "refused").iterdir()) == [path.name, f"{path.name}.reason.txt"]


@pytest.mark.parametrize("fault", ["another id", "garbage", "unfinished"])
def test_a_run_with_a_fault_is_set_aside(history: History, inbox: Path, fault: str) -> None:
    good = make_run()
    write_inbox(inbox, good)
    path = write_inbox(inbox, make_run())
    content = path.read_bytes()
    if fault == "another id":
        path = path.rename(inbox / f"{uuid7()}.run.zip")
    else:
        path.write_bytes(b"garbage" if fault == "garbage" else content[: len(content) // 2])
    assert Inbox(inbox).take(history) == [good.id]
    assert [run.id for run in history.runs.recent()] == [good.id]
    assert sorted(file.name for file in (inbox / "refused").iterdir()) == [path.name, f"{path.name}.reason.txt"]


def test_a_run_stays_while_the_history_takes_no_more(path: Path, inbox: Path) -> None:
    run = make_run()
    write_inbox(inbox, run)
    history = History.open(path)
    history.close()
    with pytest.raises(HistoryError, match="closed"):
        Inbox(inbox).take(history)
    with History.open(path) as history:
        assert Inbox(inbox).take(history) == [run.id]
