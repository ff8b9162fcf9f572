"""Hanging loads: ended by a timeout, or immediately when the run is stopped; nothing is left running."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.bench.baselines.arms import open_target
from engine.bench.measurement import target_pool as fleets
from engine.bench.measurement.load_timeout import LEAST_S, LoadTimeout, patience_s
from engine.bench.measurement.target import Target
from engine.bench.measurement.target_pool import TargetPool
from engine.bench.planning.plan import Arm, Cell, Plan
from engine.bench.planning.schedule import Turn
from engine.bench.running.runner import Runner
from engine.bench.running.strategies import Rounds
from engine.errors import BenchTimeout, PoolClosed
from engine.pool.pool import Pool
from engine.samples import no_samples
from tests.engine.bench.cell_maker import make_cell
from tests.engine.bench.fakes import Kept
from tests.processes import children

PLAN = Plan(model="none.gguf", rounds=1)


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every program that is started in place of Python hang forever."""
    program = tmp_path / "hanging"
    program.write_text("#!/bin/sh\nexec sleep 3600\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))


def stopped_soon(stop: Callable[[], object]) -> None:
    """Call `stop` from another thread, during a load or before it."""
    threading.Timer(0.2, stop).start()


def test_what_loads_is_ended_once_and_the_reason_raised() -> None:
    ends: list[str] = []
    with pytest.raises(PoolClosed, match="stopped while a model was loading"), LoadTimeout() as timeout:
        timeout.begins(lambda: ends.append("first"))
        timeout.stop()
        timeout.stop()
        raise ValueError("the load failed, as it was ended")
    assert ends == ["first"]
    timeout.stop()
    assert ends == ["first"]


def test_what_begins_after_the_stop_ends_at_once() -> None:
    ends: list[str] = []
    with pytest.raises(PoolClosed), LoadTimeout() as timeout:
        timeout.stop()
        timeout.begins(lambda: ends.append("at once"))
    assert ends == ["at once"]


def test_a_load_that_ends_in_time_is_left_alone() -> None:
    ends: list[str] = []
    with LoadTimeout() as timeout:
        timeout.begins(lambda: ends.append("never"))
    assert ends == []


def test_a_load_that_takes_too_long_is_ended() -> None:
    ended = threading.Event()
    with pytest.raises(BenchTimeout, match="did not load within 0 s"), LoadTimeout(0.05) as timeout:
        timeout.begins(ended.set)
        ended.wait()


def test_larger_files_may_take_longer() -> None:
    assert LEAST_S == patience_s(0) < patience_s(1 << 30) < patience_s(1 << 36)


def test_a_pool_that_hangs_while_it_loads_can_be_ended(hanging: None, story_model: Path) -> None:
    before = children()
    with pytest.raises(PoolClosed, match="loading was cancelled"):
        Pool(story_model, instances=2, threads=1, on_opening=stopped_soon)
    assert children() <= before
    with pytest.raises(PoolClosed):
        Pool(story_model, threads=1, on_opening=lambda abort: abort())
    assert children() <= before


@pytest.mark.parametrize("arm", ["pool", "loop"])
def test_a_cell_whose_load_hangs_times_out(
    hanging: None, story_model: Path, monkeypatch: pytest.MonkeyPatch, arm: Arm
) -> None:
    monkeypatch.setattr(fleets, "patience_s", lambda _num_bytes: 0.2)
    before, targets = children(), TargetPool(open_target)
    with pytest.raises(BenchTimeout, match="did not load within"):
        targets.target(_cell(story_model, arm))
    assert children() <= before


@pytest.mark.parametrize("arm", ["pool", "loop"])
def test_a_run_that_is_stopped_while_a_load_hangs_ends(hanging: None, story_model: Path, arm: Arm) -> None:
    before, cell = children(), _cell(story_model, arm)

    def open_one(cell: Cell, timeout: LoadTimeout) -> Target:
        stopped_soon(runner.stop)
        return open_target(cell, timeout)

    targets = TargetPool(open_one)
    runner = Runner(PLAN, [cell], targets, Kept(), strategy=Rounds([Turn(0, 0, False)], [cell], no_samples()))
    assert runner.run() == "stopped"
    assert [record.status for record in runner.records] == ["open"]
    assert children() <= before


def test_nothing_is_loaded_after_a_stop(story_model: Path) -> None:
    before, targets = children(), TargetPool()
    targets.stop()
    with pytest.raises(PoolClosed):
        targets.target(make_cell(story_model))
    assert children() <= before


def _cell(model: Path, arm: Arm) -> Cell:
    return replace(make_cell(model, pool={"parallel": 1}), arm=arm)
