"""Comparison of a stored answer with its replay: stretches between forced tokens, the first difference, bounds."""

import math

import numpy as np
import pytest

from engine.comparing.replay import Stretch, compared, drawn
from engine.step_parts import FORCED, INSPECTED
from engine.steps import StepTable
from tests.engine.history.trial_maker import make_steps


def part(table: StepTable, start: int, stop: int) -> StepTable:
    here = slice(start, stop)
    return StepTable.of(
        table.vocabulary, table.records[here], table.top_ids[here], table.top_logprobs[here], table.top_p_final[here],
        is_prompt=False,
    )  # fmt: skip


def forced(table: StepTable, *positions: int) -> StepTable:
    table.records["flags"][list(positions)] |= FORCED
    return table


def moved(table: StepTable, position: int, nats: float) -> StepTable:
    copy = part(table, 0, len(table))
    copy.records["logprob"][position] += nats
    return copy


@pytest.mark.parametrize(
    ("positions", "stretches"),
    [
        ((), [(0, 6)]),
        ((0,), [(1, 6)]),
        ((5,), [(0, 5)]),
        ((1, 2, 4), [(0, 1), (3, 4), (5, 6)]),
        (tuple(range(6)), []),
    ],
)
def test_drawn_tokens_lie_between_forced_ones(positions: tuple[int, ...], stretches: list[tuple[int, int]]) -> None:
    assert drawn(forced(make_steps(6), *positions)) == stretches


def test_tokens_before_the_first_belong_to_another_run() -> None:
    steps = forced(make_steps(6), 0, 3)
    assert drawn(steps, 2) == [(2, 3), (4, 6)]
    replay = compared(steps, [(Stretch(2, 3), part(steps, 2, 3)), (Stretch(4, 6), part(steps, 4, 6))], first=2)
    assert (replay.num_tokens, replay.num_same, replay.num_forced) == (3, 3, 1)


def test_nothing_is_drawn_in_no_steps() -> None:
    assert drawn(make_steps(0)) == []


def test_the_same_steps_are_identical() -> None:
    steps = make_steps(5)
    replay = compared(steps, [(Stretch(0, 5), steps)])
    assert (replay.is_identical, replay.num_tokens, replay.num_same, replay.largest) == (True, 5, 5, 0)
    assert replay.sentence == "Identical: 5 tokens, with the same log-probabilities."


@pytest.mark.parametrize(
    ("nats", "bound"), [(0.00021, "0.0003"), (-0.3, "0.3"), (1.01, "2"), (0.0009999, "0.001"), (math.inf, "inf")]
)
def test_the_largest_change_is_within_the_bound_that_is_shown(nats: float, bound: str) -> None:
    steps = make_steps(5)
    replay = compared(steps, [(Stretch(0, 5), moved(moved(steps, 1, nats / 2), 3, nats))])
    assert replay.is_identical and replay.largest_at == (1 if math.isinf(nats) else 3)
    assert replay.largest == pytest.approx(abs(nats))
    assert replay.sentence == f"Identical: 5 tokens, log-probabilities within {bound} nats."


def test_the_first_differing_token_is_found_with_both_distributions() -> None:
    steps, others = make_steps(6, seed=1), make_steps(6, seed=2)
    mixed = part(steps, 0, 6)
    for name in ("records", "top_ids", "top_logprobs"):
        getattr(mixed, name)[4] = getattr(others, name)[4]
    assert mixed.ids[4] != steps.ids[4]
    replay = compared(steps, [(Stretch(0, 6), mixed)])
    difference = replay.difference
    assert difference is not None and difference.replayed is not None
    assert (replay.num_same, difference.position) == (4, 4)
    assert (difference.recorded.id, difference.replayed.id) == (steps.ids[4], mixed.ids[4])
    text = steps.vocabulary.text
    expected = f"Differs first at token 5: {text(mixed.ids[4])!r} instead of {text(steps.ids[4])!r}."
    assert replay.sentence == expected
    rows = {token: (before, now) for token, before, now in difference.logprobs}
    assert rows.keys() >= {*steps.top_ids[4].tolist(), *mixed.top_ids[4].tolist(), steps.ids[4], mixed.ids[4]}
    for token, (before, now) in rows.items():
        for figure, step in ((before, steps[4]), (now, mixed[4])):
            known = {step.id: step.logprob, **dict(step.top_logprobs)}
            assert figure == known.get(token)
    probable = [max(figure for figure in row[1:] if figure is not None) for row in difference.logprobs]
    assert probable == sorted(probable, reverse=True)


def test_a_replay_that_ends_early_differs_there() -> None:
    steps = make_steps(6)
    replay = compared(steps, [(Stretch(0, 6), part(steps, 0, 4))])
    assert replay.difference is not None and replay.difference.replayed is None
    assert (replay.num_same, replay.difference.position) == (4, 4)
    assert replay.sentence.startswith("Ends after 4 tokens; the recorded answer continues with ")
    assert all(now is None for _, _, now in replay.difference.logprobs)


def test_forced_tokens_are_taken_over_and_counted() -> None:
    steps = forced(make_steps(6), 2, 3)
    replay = compared(steps, [(Stretch(0, 2), part(steps, 0, 2)), (Stretch(4, 6), moved(part(steps, 4, 6), 1, 0.5))])
    assert (replay.is_identical, replay.num_tokens, replay.num_same, replay.num_forced) == (True, 4, 4, 2)
    assert replay.largest == pytest.approx(0.5) and replay.largest_at == 5


def test_the_first_of_two_stretches_that_differ_counts() -> None:
    steps, others = forced(make_steps(6, seed=1), 2), make_steps(6, seed=2)
    assert steps.ids[1] != others.ids[1]
    replay = compared(steps, [(Stretch(0, 2), part(others, 0, 2)), (Stretch(3, 6), part(others, 3, 6))])
    assert replay.difference is not None and replay.difference.position <= 1


def test_without_recorded_figures_only_the_tokens_are_compared() -> None:
    steps = make_steps(5, k=0)
    assert not (steps.records["flags"] & INSPECTED).any()
    replay = compared(steps, [(Stretch(0, 5), make_steps(5, k=8))])
    assert (replay.largest, replay.largest_at) == (None, None)
    assert replay.sentence == "Identical: 5 tokens; no log-probabilities were recorded."


def test_the_tokens_of_a_scored_prompt_are_compared_though_none_was_drawn() -> None:
    steps = make_steps(4, is_prompt=True)
    steps.records["flags"][0] = 0
    changed = moved(steps, 0, 9.0)
    changed.records["logprob"][2] += 0.012
    replay = compared(steps, [(Stretch(0, 4), changed)], is_prompt=True)
    assert (replay.num_tokens, replay.num_forced, replay.largest_at) == (4, 0, 2)
    assert replay.largest == pytest.approx(0.012)
    assert replay.sentence == "Identical: 4 prompt tokens, log-probabilities within 0.02 nats."


def test_what_a_record_rules_out_on_both_sides_has_not_changed() -> None:
    steps = make_steps(3)
    steps.records["logprob"][1] = -np.inf
    assert compared(steps, [(Stretch(0, 3), steps)]).largest == 0
