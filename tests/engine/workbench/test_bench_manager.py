import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine import Pool, Sampling
from engine.backends.known import KnownEngine, add_known
from engine.bench.planning import engines
from engine.bench.planning.plan import Plan
from engine.errors import ConfigError, HistoryError
from engine.history.database_writer import Cursor, DatabaseWriter
from engine.history.runs import Runs
from engine.ids import new_id
from engine.machine import quietness
from engine.machine.quietness import Quietness
from engine.runs import RunRecord
from engine.settings import PREFIX, Settings
from engine.specs import Request
from engine.workbench import Workbench, history_manager
from engine.workbench.trials import Draft
from tests.conftest import SHORT_SAMPLE_S
from tests.engine.backends.fake_server import fake_server
from tests.engine.history.run_maker import assert_same_samples
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("short_samples")

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def bench(home: Path) -> Iterator[Workbench]:
    opened = Workbench(Settings.from_environment())
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def plan(story_model: Path) -> Plan:
    axes = {"layout": ("1x1",), "parallel": (1, 2)}
    workload = {"num_prompt": 16, "num_generated": 8}
    return Plan(model=str(story_model), axes=axes, workload=workload, rounds=2, name="short")


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, plan: Plan, short_samples: None
) -> Iterator[tuple[Workbench, RunRecord]]:
    """A workbench with one run, for tests that do not measure."""
    folder = tmp_path_factory.mktemp("shared")
    opened = Workbench(Settings.from_environment({PREFIX + "HOME": str(folder)}))
    yield opened, measured(opened, plan)
    opened.close()


def measured(bench: Workbench, plan: Plan) -> RunRecord:
    run_id = bench.bench.start(plan)
    bench.bench.wait(120)
    run = bench.bench.run(run_id)
    assert run is not None
    return run


def test_a_run_is_measured_and_kept(shared: tuple[Workbench, RunRecord]) -> None:
    bench, run = shared
    assert run.status == "done"
    assert {cell.status for cell in run.cells} == {"done"}
    assert run.outcome["sentence"]
    own = run.samples[~run.samples["is_anchor"] & ~run.samples["is_replaced"]]
    assert sorted(zip(own["cell"].tolist(), own["round"].tolist(), strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert (run.samples["duration_s"] >= SHORT_SAMPLE_S).all()
    assert np.isfinite(run.samples["tokens_per_s"]).all()
    (line,) = bench.bench.recent()
    assert (line.id, line.num_cells, line.machine_hash) == (run.id, 2, run.machine["hash"])
    assert bench.bench.newest_id() == run.id


def test_one_benchmark_at_a_time(bench: Workbench, plan: Plan) -> None:
    bench.bench.start(plan)
    with pytest.raises(ConfigError, match="A benchmark is still running"):
        bench.bench.start(plan)


@pytest.mark.slow
def test_stopped_in_a_sample_and_continued(bench: Workbench, plan: Plan) -> None:
    run_id = bench.bench.start(plan)
    until(lambda: (running := bench.bench.running) and running.progress.done >= 1)
    bench.bench.stop()
    bench.bench.wait(60)
    stopped = bench.bench.run(run_id)
    assert stopped is not None
    assert stopped.status == "stopped"
    before = stopped.samples
    assert len(before) >= 1

    assert bench.bench.resume(run_id) == run_id
    bench.bench.wait(120)
    done = bench.bench.run(run_id)
    assert done is not None
    assert done.status == "done"
    np.testing.assert_array_equal(done.samples["started_at"][: len(before)], before["started_at"])


def test_a_run_is_renamed_deleted_and_restored(bench: Workbench, shared: tuple[Workbench, RunRecord]) -> None:
    run = replace(shared[1], id=new_id())
    assert bench.history is not None
    bench.history.runs.keep(run)
    bench.bench.rename(run.id, "quiet evening")
    assert [one.name for one in bench.bench.recent()] == ["quiet evening"]
    with pytest.raises(ConfigError, match="1 to 200 characters"):
        bench.bench.rename(run.id, " ")
    bench.bench.delete(run.id)
    assert bench.bench.run(run.id) is None and bench.bench.recent() == []
    with pytest.raises(ConfigError, match="no such run"):
        bench.bench.delete("01a1fab9-91c7-7816-819a-8fcdffdfbaff")
    bench.bench.restore(run.id)
    restored = bench.bench.run(run.id)
    assert restored is not None and len(restored.samples) == len(run.samples)
    with pytest.raises(ConfigError, match="purged"):
        bench.bench.restore("01a1fab9-91c7-7816-819a-8fcdffdfbaff")


def test_a_run_being_measured_is_not_deleted(bench: Workbench, plan: Plan) -> None:
    run_id = bench.bench.start(replace(plan, rounds=50))
    with pytest.raises(ConfigError, match="being measured"):
        bench.bench.delete(run_id)
    bench.bench.stop()
    bench.bench.wait(60)
    bench.bench.delete(run_id)
    assert bench.bench.run(run_id) is None


@pytest.mark.slow
def test_more_rounds_are_added_to_the_same_run(bench: Workbench, plan: Plan) -> None:
    run = measured(bench, plan)
    bench.bench.add_rounds(run.id, 1)
    bench.bench.wait(120)
    longer = bench.bench.run(run.id)
    assert longer is not None
    assert longer.plan["rounds"] == 3
    assert set(longer.samples["round"].tolist()) >= {0, 1, 2}


def test_a_plan_that_cannot_run_is_refused(bench: Workbench, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no configuration of this plan"):
        bench.bench.start(Plan(model=str(tmp_path / "missing.gguf")))
    assert bench.bench.running is None


def test_a_person_goes_first_between_samples(bench: Workbench, plan: Plan) -> None:
    bench.load_default()
    until(lambda: bench.model.engine is not None)
    bench.bench.start(plan)
    until(lambda: (running := bench.bench.running) and running.progress.cell is not None)
    draft = Draft(prompt="Once upon a time", sampling=Sampling(seed=1), request=Request(max_tokens=4, top_k=1))
    trial = bench.trials.submit(draft)
    assert len(trial.job.result(60).steps) == 4
    assert bench.bench.running is not None
    bench.bench.stop()
    bench.bench.wait(60)
    assert len(bench.trials.submit(draft).job.result(60).steps) == 4


def test_settings_are_used_and_kept_as_a_profile(
    shared: tuple[Workbench, RunRecord], plan: Plan, tmp_path: Path
) -> None:
    bench, run = shared
    bench.bench.use(run.id, 1)
    until(lambda: bench.model.engine is not None)
    assert bench.model.engine is not None
    assert bench.model.engine.spec.parallel == 2
    (spec,) = bench.bench.profiles(Path(plan.model)).values()
    assert spec == bench.model.engine.spec

    path = tmp_path / "story.profile.json"
    path.write_bytes(bench.bench.profile(run.id, 1))
    with Pool.from_profile(path) as pool:
        assert pool.spec == spec
    path.write_text(json.dumps({"pool": {"paralel": 2}, "model": plan.model}))
    with pytest.raises(ConfigError, match="did you mean parallel"):
        Pool.from_profile(path)
    path.write_text("[]")
    with pytest.raises(ConfigError, match="is not a profile"):
        Pool.from_profile(path)


def test_a_run_goes_out_and_comes_in(bench: Workbench, shared: tuple[Workbench, RunRecord]) -> None:
    other, run = shared
    assert bench.bench.import_file("elsewhere.run.zip", other.bench.export(run.id, "run")) == run.id
    again = bench.bench.run(run.id)
    assert again is not None
    assert again.origin == "elsewhere.run.zip"
    assert again.samples.tobytes() == run.samples.tobytes()
    header, *lines = bench.bench.export(run.id, "csv").decode().splitlines()
    assert header.startswith("label,cell,round")
    assert len(lines) == len(run.samples)
    rows = bench.bench.export(run.id, "llama-bench")
    imported = bench.bench.run(bench.bench.import_file("rows.jsonl", rows))
    assert imported is not None
    assert imported.origin == "llama-bench"
    with pytest.raises((ConfigError, HistoryError), match="line 1"):
        bench.bench.import_file("nonsense.jsonl", b"{broken")


@pytest.mark.slow
def test_limits_are_measured_and_kept(bench: Workbench) -> None:
    assert bench.bench.limits() is None
    bench.bench.measure_limits()
    until(lambda: bench.bench.background.running is None)
    limits = bench.bench.limits()
    assert limits is not None
    assert limits.bandwidth_bytes_per_s > 1e8
    assert bench.history is not None
    assert bench.history.runs.limits(limits.machine_hash) == limits.to_dict()


def test_a_shape_is_written_and_asked_the_same(shared: tuple[Workbench, RunRecord]) -> None:
    bench, run = shared
    bench.bench.start_shape("tiny", run.id)
    until(lambda: bench.bench.running)
    assert bench.bench.running is not None
    assert bench.bench.running.plan.model.endswith("tiny-Q4_K_M.gguf")
    assert bench.bench.running.plan.axes == Plan.from_dict(run.plan).axes
    bench.bench.stop()
    bench.bench.wait(60)


def test_a_plan_waits_for_a_quiet_machine_and_then_runs_or_is_stopped(
    bench: Workbench, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {"cc1plus": 1.5}
    monkeypatch.setattr(quietness, "READING_S", 0.02)
    monkeypatch.setattr(quietness, "quietness_of", lambda _watch: Quietness(sum(others.values()), 2, 0.0, dict(others)))
    bench.bench.start_when_quiet(plan)
    waiting = bench.bench.background.running
    assert waiting is not None
    until(lambda: waiting.waits_for == "cc1plus uses 1.5 cores")
    assert bench.bench.running is None
    waiting.stop()
    until(lambda: bench.bench.background.running is None)
    bench.bench.start_when_quiet(plan)
    others.clear()
    until(lambda: bench.bench.running)
    assert bench.bench.running is not None and bench.bench.running.plan == plan
    bench.bench.stop()
    bench.bench.wait(60)


@pytest.mark.parametrize("is_shape", [False, True])
@pytest.mark.parametrize("is_confirmed", [False, True])
def test_a_run_that_begins_later_sends_to_confirmed_addresses_only(
    bench: Workbench,
    shared: tuple[Workbench, RunRecord],
    home: Path,
    plan: Plan,
    monkeypatch: pytest.MonkeyPatch,
    is_shape: bool,
    is_confirmed: bool,
) -> None:
    monkeypatch.setattr(quietness, "READING_S", 0.02)
    monkeypatch.setattr(quietness, "quietness_of", lambda _watch: Quietness(0.0, 2, 0.0, {}))
    monkeypatch.setattr(engines, "is_remote", engines.is_external)
    with fake_server({}) as (address, seen):
        add_known(home, KnownEngine(name="desk", url=address))
        plan = replace(plan, axes={"arm": ("pool", "external:desk")})
        run = replace(shared[1], id=new_id(), plan=plan.to_dict())
        assert bench.history is not None
        bench.history.runs.keep(run)
        confirmed = (address,) if is_confirmed else ()
        if is_shape:
            bench.bench.start_shape("tiny", run.id, confirmed=confirmed)
        else:
            bench.bench.start_when_quiet(plan, confirmed=confirmed)
        until(lambda: bench.bench.background.running is None)
        begun = bench.bench.background.last
        assert begun is not None
        if is_confirmed:
            until(lambda: seen)
            assert begun.state == "done"
            bench.bench.stop()
        else:
            assert "before you confirm it" in str(begun.error)
        bench.bench.wait(60)
        assert (bench.bench.newest_id() != run.id) is is_confirmed is bool(seen)


@pytest.mark.slow
def test_without_a_history_a_run_is_shown_all_the_same(home: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = home / "folder.duckdb"
    taken.mkdir()
    monkeypatch.setenv("LOGITBENCH_HISTORY", str(taken))
    bench = Workbench(Settings.from_environment())
    try:
        assert bench.history is None
        run = measured(bench, replace(plan, axes={"layout": ("1x1",)}, rounds=1))
        assert run.status == "done"
        assert bench.bench.newest_id() == run.id
        with pytest.raises(HistoryError, match="nothing can be saved"):
            bench.bench.save_plan("short", plan)
    finally:
        bench.close()


@pytest.mark.slow
@pytest.mark.parametrize("works_at_the_end", [True, False])
def test_a_disk_that_fails_while_it_is_measured(
    bench: Workbench, plan: Plan, monkeypatch: pytest.MonkeyPatch, works_at_the_end: bool
) -> None:
    """The cause of unsaved samples is known meanwhile; all are saved at the end, or once the disk works again."""
    write, is_full = DatabaseWriter.write, threading.Event()

    def write_or_fail(file: DatabaseWriter, job: Callable[[Cursor], object]) -> object:
        if is_full.is_set():
            raise HistoryError("the disk is full")
        return write(file, job)

    monkeypatch.setattr(DatabaseWriter, "write", write_or_fail)
    monkeypatch.setattr(history_manager, "LOOK_S", 3600.0 if works_at_the_end else 0.1)
    run_id = bench.bench.start(replace(plan, rounds=4))
    until(lambda: (now := bench.bench.running) is not None and now.progress.done >= 1)
    assert bench.bench.running is not None and bench.bench.running.failure is None
    is_full.set()
    until(lambda: (now := bench.bench.running) is not None and now.failure is not None)
    if works_at_the_end:
        is_full.clear()
    bench.bench.wait(120)
    run = bench.bench.run(run_id)
    assert run is not None and run.status == "done" and bench.history is not None
    if not works_at_the_end:
        assert bench.bench.is_only_in_memory(run_id)
        with pytest.raises(ConfigError, match="could not be saved yet"):
            bench.bench.delete(run_id)
        kept = bench.history.runs.run(run_id)
        assert kept is not None and 0 < len(kept.samples) < len(run.samples)
        is_full.clear()
    until(lambda: not bench.bench.is_only_in_memory(run_id))
    kept = bench.history.runs.run(run_id)
    assert kept is not None and kept.status == "done" and kept.outcome == run.outcome
    assert_same_samples(kept.samples, run.samples)


@pytest.mark.slow
def test_a_run_that_is_only_in_memory_can_be_continued_and_is_then_kept_whole(
    bench: Workbench, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_manager, "LOOK_S", 3600.0)
    with monkeypatch.context() as full:
        full.setattr(Runs, "add", _full)
        full.setattr(Runs, "put", _full)
        run = measured(bench, replace(plan, rounds=1))
        assert bench.bench.is_only_in_memory(run.id)
    bench.bench.add_rounds(run.id, 1)
    bench.bench.wait(120)
    more = bench.bench.run(run.id)
    assert more is not None and len(more.samples) > len(run.samples)
    assert bench.history is not None
    kept = bench.history.runs.run(run.id)
    assert kept is not None and not bench.bench.is_only_in_memory(run.id)
    assert_same_samples(kept.samples, more.samples)


def _full(*_arguments: object) -> None:
    raise HistoryError("the disk is full")


KILLED = """
import sys
from engine.bench.planning.plan import Plan
from engine.settings import Settings
from engine.workbench import Workbench, history_manager
bench = Workbench(Settings.from_environment())
print(bench.bench.start(Plan(model=sys.argv[1], axes={"layout": ("1x1",)}, rounds=50)))
while True:
    running = bench.bench.running
    print(running.progress.done, flush=True)
    import time; time.sleep(0.1)
"""


@pytest.mark.slow
def test_killed_in_mid_run_it_is_offered_with_all_its_samples(home: Path, story_model: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(story_model)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        run_id = child.stdout.readline().strip()
        done = 0
        for line in child.stdout:
            done = int(line)
            if done >= 2:
                break
        os.kill(child.pid, signal.SIGKILL)
    bench = Workbench(Settings.from_environment())
    try:
        (offered,) = bench.bench.interrupted()
        assert offered.id == run_id
        assert done <= offered.num_samples <= done + 1
        bench.bench.resume(run_id)
        until(lambda: (running := bench.bench.running) and running.progress.done > offered.num_samples)
    finally:
        bench.close()
