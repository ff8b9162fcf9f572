"""Control: samples that drifted are measured again, and a machine that changed for good is recognised."""

from collections.abc import Callable

import numpy as np

from engine.bench.planning.plan import Plan
from engine.bench.planning.schedule import MOST_REPEATS, rounds_of
from engine.bench.running.runner import Runner
from engine.bench.running.strategies import Rounds
from engine.samples import Samples, no_samples
from engine.units import counted
from tests.engine.bench.fakes import FakeTargetPool, Kept, cells
from tests.waiting import Clock

NUM_CELLS, NUM_ROUNDS = 4, 6
TURNS = rounds_of(NUM_CELLS, NUM_ROUNDS, 3, 0)


def run(drift: Callable[[float], float]) -> tuple[Samples, Rounds, FakeTargetPool]:
    chosen, clock, reporter = cells(NUM_CELLS), Clock(), Kept()
    targets = FakeTargetPool(lambda _cell: 100.0, clock, drift=drift)
    strategy = Rounds(TURNS, chosen, no_samples())
    plan = Plan(model="none.gguf", rounds=NUM_ROUNDS)
    assert Runner(plan, chosen, targets, reporter, strategy=strategy, clock=clock).run() == "done"
    return reporter.samples, strategy, targets


def counting(samples: Samples) -> list[tuple[int, int, bool]]:
    kept = samples[~samples["is_replaced"]]
    return sorted((int(row["cell"]), int(row["round"]), bool(row["is_anchor"])) for row in kept)


def test_a_steady_machine_measures_nothing_twice() -> None:
    samples, strategy, _targets = run(lambda _now: 1.0)
    assert not samples["is_replaced"].any()
    assert strategy.says == ""
    assert [tuple(turn) for turn in TURNS] == [
        (int(row["cell"]), int(row["round"]), bool(row["is_anchor"])) for row in samples
    ]


def test_drift_within_ten_percent_counts() -> None:
    samples, _strategy, _targets = run(lambda now: 1.0 - 0.09 * (now > 1030))
    assert not samples["is_replaced"].any()


def test_a_stretch_of_drift_is_kept_but_measured_again() -> None:
    samples, strategy, _targets = run(lambda now: 0.8 if 1030 < now < 1045 else 1.0)
    replaced = samples[samples["is_replaced"]]
    assert len(replaced)
    positions = replaced["position"]
    assert positions.tolist() == list(range(positions[0], positions[-1] + 1))
    before = samples[samples["position"] == positions[0] - 1]
    assert before["is_anchor"].all() and not before["is_replaced"].any()
    slow = samples[samples["tokens_per_s"] < 100]
    assert len(slow) and slow["is_replaced"].all()
    assert counting(samples) == sorted(tuple(turn) for turn in TURNS)
    assert strategy.says == ""


def test_a_machine_that_changed_for_good_is_accepted_after_two_more_tries() -> None:
    samples, strategy, _targets = run(lambda now: 1.0 if now < 1030 else 0.7)
    assert counting(samples) == sorted(tuple(turn) for turn in TURNS)
    first = samples[samples["is_replaced"]][0]
    tries = samples[(samples["cell"] == first["cell"]) & (samples["round"] == first["round"]) & ~samples["is_anchor"]]
    assert len(tries) == MOST_REPEATS + 1
    assert tries["is_replaced"].tolist() == [True, True, False]
    assert "−30 %" in strategy.says


def test_without_repeats_a_changed_machine_is_accepted_at_once_and_reported() -> None:
    whole, _strategy, _targets = run(lambda _now: 1.0)
    strategy = Rounds(TURNS, cells(NUM_CELLS), whole[:8], most_repeats=0)
    ahead = strategy.ahead(whole[:8], ())
    slow = whole[7:8].copy()
    slow["position"], slow["is_anchor"], slow["tokens_per_s"] = 8, True, 50.0
    assert strategy.review(np.concatenate([whole[:8], slow])) == []
    assert strategy.ahead(whole[:8], ()) == ahead
    assert strategy.says.startswith("The machine's speed changed during the run: the control by −50 %. ")


def test_continuing_knows_the_anchors_so_far() -> None:
    whole, _strategy, _targets = run(lambda _now: 1.0)
    part = whole[:8]
    assert part["is_anchor"].sum() > 1
    strategy = Rounds(TURNS, cells(NUM_CELLS), part)
    assert len(strategy.ahead(part, ())) == len(TURNS) - len(part)
    slow = part[-1:].copy()
    slow["position"], slow["is_anchor"], slow["tokens_per_s"] = 8, True, 50.0
    again = list(range(int(part["position"][part["is_anchor"]][-1]) + 1, 9))
    assert strategy.review(np.concatenate([part, slow])) == again
    assert strategy.says == f"{counted(len(again), 'sample')} measured again: the machine's speed changed by −50 %"


def test_more_rounds_add_only_their_own_turns() -> None:
    whole, _strategy, _targets = run(lambda _now: 1.0)
    more = rounds_of(NUM_CELLS, NUM_ROUNDS + 2, 3, 0)
    ahead = Rounds(more, cells(NUM_CELLS), whole)
    added = []
    while (turn := ahead.next(whole, ())) is not None:
        added.append(turn)
    own = [turn for turn in added if not turn.is_anchor]
    assert {turn.round for turn in own} == {NUM_ROUNDS, NUM_ROUNDS + 1}
    assert len(own) == 2 * NUM_CELLS
