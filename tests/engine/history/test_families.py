"""Families of trials: found from any member, without deleted ones, whatever the links between them are."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.history import History, TrialRecord
from engine.step_parts import FORCED
from tests.engine.history.trial_maker import make_trial, uuid7


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History.open(tmp_path / "history.duckdb") as opened:
        yield opened


def stored(history: History, *trials: TrialRecord) -> None:
    for trial in trials:
        history.record(trial).result(60)


def ids_of(history: History, id: str) -> set[str]:
    return {one.id for one in history.family(id)}


def test_a_family_is_found_from_any_of_its_trials(history: History) -> None:
    root = make_trial()
    child, other = make_trial(parent=root.id), make_trial(parent=root.id)
    grandchild, stranger = make_trial(parent=child.id), make_trial()
    everyone = (root, child, other, grandchild)
    stored(history, *everyone, stranger)
    for one in everyone:
        assert ids_of(history, one.id) == {each.id for each in everyone}
    assert ids_of(history, stranger.id) == {stranger.id}
    assert history.family(uuid7()) == [] and history.family("no id") == []


def test_what_a_relative_has(history: History) -> None:
    trial = make_trial(5, seed=3)
    stored(history, trial, make_trial(0, parent=trial.id))
    history.marks.star("trial", [trial.id], True)
    history.marks.note("trial", trial.id, "the good one")
    one, empty = history.family(trial.id)
    assert (one.id, one.created_at, one.is_starred, one.note) == (trial.id, trial.created_at, True, "the good one")
    assert (one.seed, one.finish_reason) == (trial.completion.seed, "length")
    assert (empty.is_starred, empty.note) == (False, "")


def test_paths_of_trials(history: History) -> None:
    trial, other = make_trial(5, seed=3), make_trial(7, seed=4)
    trial.completion.steps.records["flags"][2] |= FORCED
    trial.completion.steps.records["logprob"][1] = np.nan
    empty = make_trial(0)
    stored(history, trial, other, empty)
    paths = history.paths([other.id, trial.id, empty.id, uuid7()])
    assert paths.keys() == {trial.id, other.id}
    for one in (trial, other):
        assert paths[one.id].trial_id == one.id and paths[one.id].ids.tolist() == one.completion.ids
        np.testing.assert_array_equal(paths[one.id].logprobs, one.completion.steps.records["logprob"])
    assert paths[trial.id].is_forced.tolist() == [False, False, True, False, False]
    assert history.paths([]) == {}


def test_a_deleted_trial_is_left_out_and_those_that_come_from_it_stay(history: History) -> None:
    root = make_trial()
    child = make_trial(parent=root.id)
    grandchild = make_trial(parent=child.id)
    stored(history, root, child, grandchild)
    history.delete(child.id)
    assert ids_of(history, grandchild.id) == {root.id, grandchild.id}
    history.restore(child.id)
    assert ids_of(history, root.id) == {root.id, child.id, grandchild.id}


def test_links_in_a_circle_and_to_another_prompt(history: History) -> None:
    one, two = make_trial(), make_trial()
    one, two = replace(one, parent=two.id), replace(two, parent=one.id)
    foreign = make_trial(parent=one.id)
    foreign = replace(foreign, completion=replace(foreign.completion, prompt_ids=(257, 300)))
    orphan = make_trial(parent=uuid7())
    stored(history, one, two, foreign, orphan)
    assert ids_of(history, one.id) == {one.id, two.id}
    assert ids_of(history, orphan.id) == {orphan.id}
