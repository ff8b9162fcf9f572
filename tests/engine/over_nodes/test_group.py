"""The group of a benchmark's runs: its tag, what is stored of it, and how its runs are found again."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from engine.errors import HistoryError
from engine.history import History
from engine.over_nodes.group import GroupKeeper, group_of, group_tag, tag_of
from engine.runs import RunRecord
from tests.engine.history.run_maker import make_run

BEGAN = datetime(2026, 11, 28, 9, 30, 5)


def of_node(name: str) -> RunRecord:
    return make_run(origin=f"node {name}")


@pytest.mark.parametrize("name", ["", "nodes", "a, b", "x" * 1000, " spaced "])
def test_the_tag_of_a_group_is_one_that_is_known_again(name: str) -> None:
    tag = tag_of(name, BEGAN)
    assert group_tag(["mine", tag] if tag > "mine" else [tag, "mine"]) == tag
    assert group_tag(["2026", "2026-11-28 mine"]) == ""


def test_runs_of_a_group_are_found_from_each_of_them(tmp_path: Path) -> None:
    runs, other = [of_node("b"), of_node("a")], of_node("a")
    with History.open(tmp_path / "h.duckdb") as history:
        keeper, another = (GroupKeeper(history, tag_of(name, BEGAN), _unexpected) for name in ("one", "two"))
        for run in runs:
            keeper.keep(replace(run, status="running"))
            keeper.keep(run)
        another.keep(other)
        history.marks.tag("run", [runs[0].id], add=["0 first in the alphabet"])
        history.marks.archive("run", [runs[1].id], True)
        groups = [group_of(history, run) for run in runs]
        assert [[(one.id, one.node) for one in group] for group in groups] == [
            [(runs[1].id, "a"), (runs[0].id, "b")]
        ] * 2
        assert groups[0][0].num_samples + groups[0][0].num_replaced == len(runs[1].samples)
        assert [one.id for one in group_of(history, other)] == [other.id]
        assert group_of(history, make_run()) == [] and group_of(history, of_node("c")) == []
        assert history.runs.run(runs[0].id) is not None and not keeper.unsaved


def test_what_is_not_stored_is_kept_and_reported_once(tmp_path: Path) -> None:
    errors: list[HistoryError] = []
    run, other = of_node("a"), of_node("b")
    history = History.open(tmp_path / "h.duckdb")
    history.close()
    keeper = GroupKeeper(history, tag_of("one", BEGAN), errors.append)
    keeper.keep(replace(run, status="running"))
    keeper.keep(run)
    keeper.keep(other)
    assert len(errors) == 1 and list(keeper.unsaved.values()) == [run, other]
    with History.open(tmp_path / "h.duckdb") as works:
        keeper.put(works, run)
        assert works.runs.run(run.id) is not None and list(keeper.unsaved) == [other.id]
    nowhere = GroupKeeper(None, keeper.tag, _unexpected)
    nowhere.keep(run)
    assert nowhere.unsaved == {run.id: run}


def _unexpected(error: HistoryError) -> None:
    raise AssertionError(error)
