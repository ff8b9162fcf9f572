"""Schedule: balanced, shuffled, the same for the same seed, with the control where it belongs."""

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from engine.bench.planning import feasibility
from engine.bench.planning.cells import cells_of
from engine.bench.planning.plan import Plan
from engine.bench.planning.schedule import Turn, rounds_of, turns_of
from engine.errors import ConfigError
from engine.models.memory import estimate


def own(turns: list[Turn]) -> list[Turn]:
    return [turn for turn in turns if not turn.is_anchor]


def by_round(turns: list[Turn]) -> list[list[int]]:
    rounds = itertools.groupby(own(turns), key=lambda turn: turn.round)
    return [[turn.cell for turn in group] for _number, group in rounds]


def test_every_cell_comes_once_in_every_round() -> None:
    rounds = by_round(rounds_of(7, 9, seed=3, anchor=2))
    assert len(rounds) == 9
    assert all(sorted(order) == list(range(7)) for order in rounds)


def test_over_two_rounds_all_cells_come_equally_early() -> None:
    rounds = by_round(rounds_of(7, 8, seed=3, anchor=0))
    positions = [fmean(order.index(cell) for order in rounds) for cell in range(7)]
    assert positions == [3.0] * 7


def test_rounds_are_shuffled_anew_and_repeatably() -> None:
    turns = rounds_of(12, 8, seed=5, anchor=0)
    assert turns == rounds_of(12, 8, seed=5, anchor=0)
    assert turns != rounds_of(12, 8, seed=6, anchor=0)
    assert len({tuple(order) for order in by_round(turns)}) == 8


def test_the_anchor_stands_at_both_ends_and_after_every_six_samples() -> None:
    turns = rounds_of(5, 6, seed=1, anchor=4)
    places = [index for index, turn in enumerate(turns) if turn.is_anchor]
    assert {turn.cell for turn in turns if turn.is_anchor} == {4}
    assert (places[0], places[-1]) == (0, len(turns) - 1)
    assert all(later - earlier <= 7 for earlier, later in itertools.pairwise(places))
    assert Counter(turn.cell for turn in own(turns)) == dict.fromkeys(range(5), 6)
    assert all(turns[place - 1].cell != 4 or not turns[place - 1].is_anchor for place in places[1:])


def test_one_cell_is_its_own_anchor() -> None:
    assert [turn.is_anchor for turn in rounds_of(1, 3, seed=0, anchor=0)] == [True, False, False, False, True]


def test_cells_of_the_same_workers_follow_each_other_where_asked() -> None:
    groups = {cell: cell % 3 for cell in range(12)}
    for order in by_round(rounds_of(12, 6, seed=2, anchor=0, groups=groups)):
        assert len([key for key, _cells in itertools.groupby(order, groups.get)]) == 3


def test_too_many_samples_are_refused_with_their_number() -> None:
    with pytest.raises(ConfigError, match="9,999 configurations × 1,000 rounds are 9,999,000 samples"):
        rounds_of(9999, 1000, seed=0, anchor=0)


# The schedule of a plan.


def test_cells_that_cannot_run_have_no_turn(story_model: Path) -> None:
    plan = Plan(model=str(story_model), axes={"n_ctx": (64, 1024)}, workload={"num_prompt": 512}, rounds=2)
    cells = cells_of(plan)
    assert [bool(cell.refusal) for cell in cells] == [True, False]
    assert {turn.cell for turn in turns_of(plan, cells)} == {1}


def test_a_plan_of_which_nothing_can_run_says_why() -> None:
    plan = Plan(model="nowhere.gguf")
    with pytest.raises(ConfigError, match=r"none of the 1 configurations can run; the first one: .*nowhere.gguf"):
        turns_of(plan, cells_of(plan))


def test_workers_that_do_not_fit_together_are_loaded_once_a_round(
    story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(model=str(story_model), axes={"parallel": (1, 2, 3), "num_prompt": (8, 16, 24, 32)}, rounds=4)
    cells = cells_of(plan)
    keys = [cell.worker_key for cell in cells]

    def num_loads() -> list[int]:
        rounds = by_round(turns_of(plan, cells))
        return [len(list(itertools.groupby(order, keys.__getitem__))) for order in rounds]

    assert max(num_loads()) > 3
    largest = max(needed.total for cell in cells if (needed := feasibility.Feasibility().memory(cell.model, cell.pool)))
    monkeypatch.setattr(feasibility, "estimate", lambda *asked: replace(estimate(*asked), available=2 * largest))
    assert num_loads() == [3, 3, 3, 3]
