"""Runs on the real engine with the shipped model, and samples far shorter than those of a real run."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.bench.measurement.load_timeout import LoadTimeout
from engine.bench.measurement.target import EngineTarget, Target, open_engine_target
from engine.bench.measurement.target_pool import TargetPool
from engine.bench.planning.candidates import DEFAULT, candidates
from engine.bench.planning.cells import cells_of
from engine.bench.planning.plan import Cell, Plan
from engine.bench.running.halving import final_round
from engine.bench.running.runner import Runner
from engine.bench.running.tuning import Tuning
from engine.stats import FIRST_LOOK
from tests.engine.bench.fakes import Kept

pytestmark = pytest.mark.usefixtures("short_samples")

SAMPLE_S = 0.02


@pytest.fixture
def plan(story_model: Path) -> Plan:
    return Plan(
        model=str(story_model),
        axes={"parallel": (1, 2), "num_generated": (4, 8)},
        pool={"instances": 1, "threads": 1, "n_ctx": 256},
        workload={"num_prompt": 4},
        rounds=2,
    )


@contextmanager
def targets_of(opened: list[EngineTarget]) -> Iterator[TargetPool]:
    """Yield a target pool that adds the targets it opens to `opened`."""

    def open_one(cell: Cell, timeout: LoadTimeout) -> Target:
        opened.append(open_engine_target(cell, timeout, sample_s=SAMPLE_S))
        return opened[-1]

    with closing(TargetPool(open_one)) as targets:
        yield targets


@pytest.mark.slow
def test_every_cell_is_measured_and_those_that_differ_in_their_requests_share_workers(plan: Plan) -> None:
    cells, reporter, opened = cells_of(plan), Kept(), list[EngineTarget]()
    with targets_of(opened) as targets:
        assert Runner(plan, cells, targets, reporter).run() == "done"
    assert len(opened) == 2
    samples = reporter.samples
    for cell in cells:
        own = samples[(samples["cell"] == cell.number) & ~samples["is_anchor"] & ~samples["is_replaced"]]
        assert own["round"].tolist() == [0, 1]
        assert (own["tokens_per_s"] > 0).all() and (own["duration_s"] >= SAMPLE_S).all()
    assert (np.diff(samples["started_at"]) > 0).all()
    last = {record.number: record for record in reporter.cells}
    assert {record.status for record in last.values()} == {"done"}
    assert all(record.facts["repetitions"] >= 1 for record in last.values())


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_is_replaced_and_no_sample_is_missing(plan: Plan) -> None:
    cells, reporter, opened = cells_of(plan), Kept(), list[EngineTarget]()
    with targets_of(opened) as targets:
        runner = Runner(plan, cells, targets, reporter, between=lambda: kill_once(opened, reporter))
        assert runner.run() == "done"
    assert {record.status for record in runner.records} == {"done"}
    kept = reporter.samples[~reporter.samples["is_anchor"] & ~reporter.samples["is_replaced"]]
    assert np.unique(kept["cell"], return_counts=True)[1].tolist() == [2] * len(cells)


def kill_once(opened: list[EngineTarget], reporter: Kept) -> None:
    """Kill the worker that was opened first before the fourth sample."""
    if len(reporter.samples) == 3:
        os.kill(opened[0].engine.workers()[0].pid, signal.SIGKILL)


def test_stop_ends_a_long_sample_at_once_and_its_workers_with_it(story_model: Path) -> None:
    plan = Plan(
        model=str(story_model),
        axes={"parallel": (1,)},
        pool={"instances": 1, "threads": 1, "n_ctx": 2048},
        workload={"num_prompt": 4, "num_generated": 2000},
        rounds=50,
    )
    opened = list[EngineTarget]()
    reporter = Kept()
    with targets_of(opened) as targets:
        runner = Runner(plan, cells_of(plan), targets, reporter)
        ended: list[Any] = []
        thread = threading.Thread(target=lambda: ended.append(runner.run()))
        thread.start()
        while not opened or not opened[0].engine.workers()[0].num_running:
            time.sleep(0.005)
        pid = opened[0].engine.workers()[0].pid
        runner.stop()
        thread.join(60)
        assert ended == ["stopped"]
        assert not len(reporter.samples)
        assert not Path(f"/proc/{pid}").exists()
    assert runner.records[0].status == "open"


@pytest.mark.slow
def test_a_worker_that_hangs_fails_its_cell_in_time_and_the_others_go_on(plan: Plan) -> None:
    patient = replace(plan, timeout_s=3)  # sooner than a pool kills a hung worker
    cells, reporter, opened = cells_of(patient), Kept(), list[EngineTarget]()

    frozen: list[int] = []

    def freeze_once() -> None:
        if len(reporter.samples) == 3 and not frozen:
            alive = [worker.pid for target in opened for worker in target.engine.workers()]
            frozen.append(alive[0])
            os.kill(frozen[0], signal.SIGSTOP)

    with targets_of(opened) as targets:
        runner = Runner(patient, cells, targets, reporter, between=freeze_once)
        assert runner.run() == "done"
    failed = [record for record in runner.records if record.status == "failed"]
    assert len(failed) == 1 and "3 s" in failed[0].reason
    done = [record.number for record in runner.records if record.status == "done"]
    assert len(done) == len(cells) - 1
    samples = reporter.samples[~reporter.samples["is_anchor"] & ~reporter.samples["is_replaced"]]
    assert all(samples["round"][samples["cell"] == number].tolist() == [0, 1] for number in done)


@pytest.mark.slow
def test_a_cell_that_does_not_fit_has_its_reason_and_the_others_their_samples(plan: Plan) -> None:
    axes = {"parallel": (1,), "n_ctx": (256, 1 << 24), "num_generated": (4,)}
    cells, reporter = cells_of(replace(plan, axes=axes, pool={"instances": 1, "threads": 1})), Kept()
    with targets_of([]) as targets:
        runner = Runner(plan, cells, targets, reporter)
        assert runner.run() == "done"
    fits, huge = runner.records
    assert fits.status == "done"
    assert huge.status in ("refused", "failed") and "memory" in huge.reason


@pytest.mark.alone
def test_best_settings_on_the_real_engine_end_with_a_choice(story_model: Path) -> None:
    plan = Plan(
        question="settings",
        model=str(story_model),
        axes={"layout": ("1x2",), "parallel": (1, 16), "share_weights": (False, True)},
        pool={"n_ctx": 256},
        workload={"num_prompt": 2, "num_generated": 24},
        budget_s=8,
        rounds=FIRST_LOOK,
    )
    cells, reporter = candidates(plan), Kept()
    tuning = Tuning(plan, cells)
    with closing(TargetPool(partial(open_engine_target, sample_s=SAMPLE_S))) as targets:
        assert Runner(plan, cells, targets, reporter, strategy=tuning.strategy()).run() == "done"
    outcome = tuning.outcome(reporter.samples)
    final = final_round(reporter.samples)
    assert final is not None
    assert DEFAULT in reporter.samples["cell"][reporter.samples["round"] >= final]
    medians = {
        cell: float(np.median(reporter.samples["tokens_per_s"][reporter.samples["cell"] == cell]))
        for cell in np.unique(reporter.samples["cell"]).tolist()
    }
    assert cells[max(medians, key=medians.__getitem__)].pool.parallel == 16
    winner = cells[outcome["winner"]].pool
    assert outcome["pool"]["parallel"] == winner.parallel
    # On a busy machine the final rounds may end without a verdict; then the default must stay.
    assert (winner.parallel == 16) == (outcome["word"] == "faster")
    assert outcome["word"] != "faster" or outcome["gain"]["low"] > 1
