"""The workbench with a server that it starts itself: the llama_cpp.server of the installed package."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from engine.backends.managed import ManagedEngine
from engine.backends.managed_programs import ManagedServer, managed_missing
from engine.comparing.arms import Arm, ComparisonPlan
from engine.errors import ModelError, PoolClosed
from engine.history import EngineIdentity, TrialRecord
from engine.models.identity import model_hash
from engine.settings import Settings
from engine.specs import PoolSpec, Request, Sampling
from engine.workbench import Workbench, model_manager
from engine.workbench.replays import ReplayTask
from engine.workbench.trials import Draft, Trial
from tests.processes import children_with
from tests.waiting import until

SPEC = PoolSpec(parallel=1, n_ctx=256, threads=1)


@pytest.fixture
def bench(home: Path) -> Iterator[Workbench]:
    bench = Workbench(Settings.from_environment({"LOGITBENCH_HOME": str(home)}))
    yield bench
    bench.close()


def servers() -> set[psutil.Process]:
    """Return the servers below this process; others than a test's own may run as long as the session."""
    return set(children_with("python_server"))


def test_a_trial_is_answered_by_it_and_ejecting_ends_it(bench: Workbench, story_model: Path) -> None:
    server = ManagedServer("llama_cpp.server", story_model, SPEC)
    bench.model_manager.connect(server)
    assert bench.model.name == "llama_cpp.server"
    until(lambda: not bench.model.is_loading)
    engine, identity = bench.model.loaded()
    assert isinstance(engine, ManagedEngine) and bench.model.server == server
    assert (identity.name, identity.hash) == ("Logitbench Story", model_hash(story_model))
    draft = Draft("Once upon a time", sampling=Sampling(seed=7), request=Request(max_tokens=8, top_k=10))
    _, found = stored(bench, draft)
    assert found.engine == EngineIdentity("llama_cpp.server", "", "llama-cpp-python", "model")
    last = bench.trials.submit(draft)
    bench.model_manager.eject()
    with pytest.raises(PoolClosed):
        last.job.result(60)
    assert not psutil.pid_exists(engine.pids[0])


def answered(bench: Workbench, server: ManagedServer) -> tuple[Trial, TrialRecord]:
    """Start a server and run a trial on it; give the trial and its record."""
    bench.model_manager.connect(server)
    until(lambda: not bench.model.is_loading)
    draft = Draft("Once upon a time", sampling=Sampling(seed=7), request=Request(max_tokens=24, top_k=10))
    return stored(bench, draft)


def stored(bench: Workbench, draft: Draft) -> tuple[Trial, TrialRecord]:
    """Run a trial to its end; give it and its record."""
    trial = bench.trials.submit(draft)
    trial.job.result(60)
    until(lambda: trial.is_stored)
    assert bench.history is not None
    found = bench.history.trial(trial.id)
    assert found is not None
    return trial, found


@pytest.mark.skipif(bool(managed_missing("llama-server")), reason="llama-server is not built: run `make peers`")
def test_a_trial_of_a_llama_server_is_replayed(bench: Workbench, story_model: Path) -> None:
    trial, record = answered(bench, ManagedServer("llama-server", story_model, replace(SPEC, parallel=2)))
    task = bench.replays.start(trial)
    assert task.wait(60)
    assert task.result().replay.is_identical and task.result().replay.num_tokens == 24
    bench.model_manager.eject()
    before = set(children_with("llama-server"))
    again = ReplayTask(record).start().result(60)
    assert again.replay.is_identical and again.replay.largest is not None and again.replay.largest < 1e-3
    assert again.model == story_model and set(children_with("llama-server")) <= before
    other = replace(record, completion=replace(record.completion, seed=8))
    differing = ReplayTask(other).start().result(60)
    found = differing.replay
    (remark,) = differing.remarks
    assert remark.startswith("The build of llama-server that answered is not recorded") and not again.remarks
    assert found.difference is not None and found.difference.replayed is not None
    place, token = found.difference.position, found.difference.replayed
    assert found.num_same == place and token.id != record.completion.ids[place]
    assert (
        found.sentence.startswith(f"Differs first at token {place + 1}: ")
        and found.difference.text(token.id) == token.text
    )
    assert all(found.difference.text(id) for id, _, _ in found.difference.logprobs)


def test_a_trial_of_a_server_without_token_ids_says_why_it_is_not_replayed(bench: Workbench, story_model: Path) -> None:
    trial, _ = answered(bench, ManagedServer("llama_cpp.server", story_model, SPEC))
    task = bench.replays.start(trial)
    assert task.wait(60) and isinstance(task.error, ModelError)
    assert "llama_cpp.server, which takes and returns no token ids" in str(task.error)


def test_it_is_compared_with_a_pool_and_started_again_afterwards(bench: Workbench, story_model: Path) -> None:
    server = ManagedServer("llama_cpp.server", story_model, SPEC)
    bench.model_manager.connect(server)
    until(lambda: not bench.model.is_loading)
    arm = Arm(sampling=Sampling(temperature=0), max_tokens=8)
    plan = ComparisonPlan(prompt="Once upon a time", arms=(arm, replace(arm, model=str(story_model))))
    id = bench.compare.start(plan)
    bench.compare.wait(120)
    record = bench.compare.comparison(id)
    assert [answer.error for answer in record.answers] == ["", ""]
    there, here = (bench.trials.trial(answer.trial_id) for answer in record.answers)
    assert there.engine is not None and here.engine is None
    assert there.model.hash == here.model.hash
    assert there.completion is not None and here.completion is not None
    assert there.completion.text == here.completion.text
    until(lambda: bench.model.engine is not None and bench.model.server is not None)
    assert bench.model.server == server


def test_one_that_ends_by_itself_is_reported_and_started_again(bench: Workbench, story_model: Path) -> None:
    before = servers()
    bench.model_manager.connect(ManagedServer("llama_cpp.server", story_model, SPEC))
    until(lambda: not bench.model.is_loading)
    engine, _ = bench.model.loaded()
    assert isinstance(engine, ManagedEngine)
    psutil.Process(engine.pids[0]).kill()
    until(lambda: bench.model.error is not None)
    assert str(bench.model.error) == ("llama_cpp.server is no longer loaded: llama_cpp.server was killed (SIGKILL).")
    bench.model_manager.load_again()
    assert bench.model.is_loading
    bench.model_manager.eject()
    until(lambda: servers() <= before, "a start that was given up goes on")


def test_a_model_that_is_missing_is_reported(bench: Workbench, tmp_path: Path) -> None:
    bench.model_manager.connect(ManagedServer("llama_cpp.server", tmp_path / "nothing.gguf", SPEC))
    until(lambda: not bench.model.is_loading)
    assert isinstance(bench.model.error, ModelError) and "nothing.gguf" in str(bench.model.error)


def test_a_start_whose_file_cannot_be_hashed_ends_the_server(
    bench: Workbench, story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_path: Path) -> str:
        raise ModelError("the disk has failed")

    monkeypatch.setattr(model_manager, "model_hash", failing)
    before = servers()
    gc.disable()  # which would end it as well, some time
    try:
        bench.model_manager.connect(ManagedServer("llama_cpp.server", story_model, SPEC))
        until(lambda: not bench.model.is_loading)
        assert str(bench.model.error) == "the disk has failed"
        assert servers() <= before
    finally:
        gc.enable()
