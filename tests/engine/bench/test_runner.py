"""Run on a simulated machine: order, failing cells, dying workers, stopping and resuming."""

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bench.planning.guesses import ExpectedTurn, expected_turns
from engine.bench.planning.plan import Cell, Plan
from engine.bench.planning.preview import preview
from engine.bench.planning.schedule import rounds_of, turns_of
from engine.bench.running.halving import Halving
from engine.bench.running.progress import TurnTimes
from engine.bench.running.runner import Runner, first_record
from engine.bench.running.strategies import Rounds
from engine.errors import BenchTimeout, MemoryRefused, WorkerDied
from engine.samples import FLAGS, Samples, no_samples
from tests.engine.bench.fakes import FakeTargetPool, Kept, cells
from tests.waiting import Clock

PLAN = Plan(model="none.gguf", rounds=4, seed=7)


def flat(cell: Cell) -> float:
    return 100.0 * (cell.number + 1)


def make(
    num: int = 3, *, samples: Samples | None = None, made: Any = None, **options: Any
) -> tuple[Runner, FakeTargetPool, Kept]:
    clock = Clock()
    targets, reporter = FakeTargetPool(flat, clock, **options), Kept()
    chosen = made or cells(num)
    before = no_samples() if samples is None else samples
    strategy = Rounds(rounds_of(len(chosen), PLAN.rounds, PLAN.seed, PLAN.anchor), chosen, before)
    runner = Runner(PLAN, chosen, targets, reporter, strategy=strategy, samples=before, clock=clock)
    return runner, targets, reporter


def num_own(samples: Samples) -> Counter[int]:
    kept = samples[~samples["is_anchor"] & ~samples["is_replaced"]]
    return Counter(kept["cell"].tolist())


def test_every_cell_gets_its_rounds_and_the_anchor_frames_them() -> None:
    runner, _targets, reporter = make()
    assert runner.run() == "done"
    assert num_own(reporter.samples) == {0: 4, 1: 4, 2: 4}
    assert reporter.samples["position"].tolist() == list(range(len(reporter.samples)))
    assert reporter.samples["is_anchor"][[0, -1]].all()
    assert [record.status for record in runner.records] == ["done"] * 3
    assert all(record.facts["repetitions"] == 1 for record in runner.records)
    assert np.array_equal(runner.samples["tokens_per_s"], reporter.samples["tokens_per_s"])


def test_cells_of_a_round_are_asked_the_same() -> None:
    runner, targets, reporter = make()
    runner.run()
    seeds = {(int(row["round"]), seed) for row, (_cell, seed) in zip(reporter.samples, targets.asked, strict=True)}
    assert len(seeds) == PLAN.rounds


@pytest.mark.parametrize("error", [BenchTimeout("no answer within 120 s"), MemoryRefused("needs 9 TB")])
def test_a_cell_that_fails_ends_with_its_reason_and_the_others_go_on(error: Exception) -> None:
    runner, targets, reporter = make(errors={(1, 2): error})
    assert runner.run() == "done"
    failed = runner.records[1]
    assert (failed.status, failed.reason) == ("failed", str(error))
    assert reporter.cells.count(failed) == 1
    assert targets.dropped == [1]
    assert num_own(reporter.samples) == {0: 4, 1: 1, 2: 4}


def test_a_sample_whose_worker_died_is_taken_once_more_by_a_new_one() -> None:
    runner, targets, reporter = make(errors={(2, 1): WorkerDied("killed by signal 9")})
    assert runner.run() == "done"
    assert targets.dropped == [2]
    assert num_own(reporter.samples) == {0: 4, 1: 4, 2: 4}


def test_a_worker_that_dies_twice_fails_its_cell() -> None:
    died = WorkerDied("killed by signal 9: out of memory")
    runner, _targets, reporter = make(errors={(2, 1): died, (2, 2): died})
    assert runner.run() == "done"
    assert runner.records[2].status == "failed"
    assert "out of memory" in runner.records[2].reason
    assert num_own(reporter.samples) == {0: 4, 1: 4}


def test_a_run_without_any_sample_has_failed() -> None:
    died = MemoryRefused("needs 9 TB")
    runner, _targets, reporter = make(1, errors={(0, 1): died})
    assert runner.run() == "failed"
    assert not len(reporter.samples)
    assert runner.progress().status == "failed"


def test_refused_cells_are_never_measured() -> None:
    first, refused, last = cells(3)
    made = [first, replace(refused, refusal="ubatch 64 is more than batch 32"), last]
    runner, targets, _reporter = make(made=made)
    assert runner.run() == "done"
    assert runner.records[1] == first_record(made[1])
    assert runner.records[1].status == "refused"
    assert 1 not in {cell for cell, _seed in targets.asked}


def test_stopping_drops_the_sample_being_measured_and_keeps_the_rest() -> None:
    runner, targets, reporter = make()

    def stop_in_the_fifth(target: Any) -> None:
        if len(targets.asked) == 5:
            stopper = threading.Thread(target=runner.stop)
            stopper.start()
            stopper.join()
            assert target.num_closed == 1
            raise WorkerDied("the pool was closed")

    targets.during = stop_in_the_fifth
    assert runner.run() == "stopped"
    assert len(reporter.samples) == 4
    assert {record.status for record in runner.records} == {"open"}
    assert not targets.dropped


def test_a_sample_that_ends_while_it_is_stopped_is_dropped_too() -> None:
    runner, targets, reporter = make()
    targets.during = lambda _target: runner.stop() if len(targets.asked) == 3 else None
    assert runner.run() == "stopped"
    assert len(reporter.samples) == 2


def test_a_stopped_run_goes_on_where_it_was() -> None:
    runner, targets, first = make()
    targets.during = lambda _target: runner.stop() if len(targets.asked) == 6 else None
    runner.run()
    again, _targets, second = make(samples=first.samples)
    whole, _targets, reference = make()
    assert (again.run(), whole.run()) == ("done", "done")
    both = np.concatenate([first.samples, second.samples])
    for name in ("cell", "round", "is_anchor", "position"):
        assert both[name].tolist() == reference.samples[name].tolist()


def test_failed_cells_stay_out_of_a_run_that_goes_on() -> None:
    chosen = cells(2)
    failed = replace(first_record(chosen[1]), status="failed", reason="it hung")
    clock, reporter = Clock(), Kept()
    targets = FakeTargetPool(flat, clock)
    strategy = Rounds(rounds_of(2, 4, 7, 0), chosen, no_samples())
    assert Runner(PLAN, chosen, targets, reporter, strategy=strategy, records=[failed], clock=clock).run() == "done"
    assert num_own(reporter.samples) == {0: 4}


def test_somebody_else_may_go_first_between_samples() -> None:
    chosen, clock, reporter = cells(2), Clock(), Kept()
    targets = FakeTargetPool(flat, clock)
    moments: list[int] = []
    strategy = Rounds(rounds_of(2, 4, 7, 0), chosen, no_samples())
    Runner(
        PLAN,
        chosen,
        targets,
        reporter,
        strategy=strategy,
        between=lambda: moments.append(len(reporter.samples)),
        clock=clock,
    ).run()
    assert moments == list(range(len(reporter.samples)))


def test_time_left_is_that_of_the_seconds_measured() -> None:
    runner, targets, _reporter = make()
    assert runner.progress().left_s is None
    seen = []

    def note(_target: Any) -> None:
        seen.append((targets.clock.now, runner.progress()))

    targets.during = note
    runner.run()
    ended = targets.clock.now
    assert [progress.done for _now, progress in seen] == list(range(len(seen)))
    assert {progress.total for _now, progress in seen} == {len(seen)}
    half = len(seen) // 2
    for now, progress in seen[half:]:
        assert progress.left_s == pytest.approx(ended - now, rel=0.25)
    assert runner.progress().left_s == 0


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_samples_that_are_measured_again_do_not_take_progress_back(share: float) -> None:
    even, targets, _reporter = make()
    began_s = targets.clock.now
    even.run()
    drifts_at_s = began_s + share * (targets.clock.now - began_s)
    runner, targets, reporter = make(drift=lambda now: 0.5 if now > drifts_at_s else 1.0)
    seen = []
    targets.during = lambda _target: seen.append(runner.progress())
    runner.run()
    assert reporter.samples["is_replaced"].any()
    assert [progress.done for progress in seen] == list(range(len(seen)))
    totals = [progress.total for progress in seen]
    assert totals == sorted(totals) and totals[-1] == len(seen) > totals[0]


def test_disturbed_samples_are_kept_with_their_flag() -> None:
    runner, _targets, reporter = make(flags={2: "contended"})
    runner.run()
    assert reporter.samples["flag"].tolist().count(FLAGS.index("contended")) == 1
    assert not reporter.samples["is_replaced"].any()


def test_the_programs_that_disturbed_are_named_by_their_mean_use_while_they_did() -> None:
    programs = {2: {"chromium": 1.0}, 3: {"chromium": 0.4, "cc1": 0.06}, 5: {"idle": 2.0}}
    runner, _targets, reporter = make(flags={2: "contended", 3: "throttled"}, programs=programs)
    assert runner.programs == {}
    runner.run()
    seconds = reporter.samples["duration_s"][1:3]
    assert runner.programs == {"chromium": pytest.approx(float(seconds @ [1.0, 0.4] / seconds.sum()))}


@given(
    load_s=st.floats(0.1, 60),
    true_s=st.lists(st.floats(0.5, 8), min_size=2, max_size=9),
    wrong_by=st.floats(0.4, 2.5),
    load_wrong_by=st.floats(0.2, 5),
    num_rounds=st.integers(4, 12),
)
def test_the_first_turn_corrects_the_guesses_for_samples_and_for_loads(
    load_s: float, true_s: list[float], wrong_by: float, load_wrong_by: float, num_rounds: int
) -> None:
    """All guesses for samples are wrong by one factor, those for loads by another: the time left is that of the
    guesses at first, loads included, and exact from the first turn on."""
    guesses = {
        cell: ExpectedTurn(seconds / wrong_by, 0.2, load_s / load_wrong_by) for cell, seconds in enumerate(true_s)
    }
    times = TurnTimes(guesses)
    ahead = [cell for _ in range(num_rounds) for cell in range(len(true_s))]
    samples_s, loads_s = sum(true_s) * num_rounds, load_s * len(true_s)
    assert times.left_s(ahead) == pytest.approx(samples_s / wrong_by + 0.2 * len(ahead) + loads_s / load_wrong_by)
    for turn, cell in enumerate(ahead):
        is_first = turn < len(true_s)
        times.add(cell, true_s[cell] + 0.2 + is_first * load_s, true_s[cell])
        rest_s = sum(true_s[other] + 0.2 for other in ahead[turn + 1 :])
        rest_s += load_s * max(0, len(true_s) - turn - 1)
        assert times.left_s(ahead[turn + 1 :]) == pytest.approx(rest_s)


def test_a_run_that_goes_on_knows_its_samples_and_loads_again() -> None:
    runner, _targets, reporter = make()
    runner.run()
    guesses = {cell: ExpectedTurn(60.0, 0.2, 5.0) for cell in range(3)}
    seconds = {
        cell: float(reporter.samples["duration_s"][reporter.samples["cell"] == cell].mean()) for cell in range(3)
    }
    times = TurnTimes(guesses, reporter.samples)
    assert times.left_s([0, 1, 0]) == pytest.approx(2 * seconds[0] + seconds[1] + 3 * 0.2 + 2 * 5.0)


def test_before_the_first_turn_the_time_left_is_that_of_the_preview(story_model: Path) -> None:
    plan = Plan(model=str(story_model), axes={"layout": ("1x1", "2x1"), "parallel": (1, 4)}, rounds=8)
    found = preview(plan)
    times = TurnTimes(expected_turns(plan, found.cells))
    assert times.left_s([turn.cell for turn in turns_of(plan, found.cells)]) == pytest.approx(found.seconds)


def test_a_search_ends_with_its_time_whatever_its_turns_take() -> None:
    plan = replace(PLAN, question="settings", budget_s=100.0)
    clock = Clock()
    search = Halving(plan, cells(3), no_samples(), clock=clock)
    assert search.left_s == 100.0
    clock.now += 30.0
    assert search.left_s == 70.0
    clock.now += 90.0
    assert search.left_s == 0.0
