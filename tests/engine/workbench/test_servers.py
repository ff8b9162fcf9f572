"""The workbench with an external engine: our own API on the model that ships, asked over HTTP."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.backends.dialects import NOT_REPORTED
from engine.backends.known import KnownEngine
from engine.comparing.arms import Arm, ComparisonPlan
from engine.errors import ConfigError, ModelError
from engine.history import EngineIdentity
from engine.history.export import to_json
from engine.history.trial_json import trials_from_json
from engine.models import embedded_model
from engine.settings import Settings
from engine.specs import Request, Sampling
from engine.workbench import Workbench
from engine.workbench.model_diffs import DiffTask, Other
from engine.workbench.replays import ReplayTask
from engine.workbench.trial_records import record_of
from engine.workbench.trials import Draft, LiveTrial
from tests.processes import free_port
from tests.servers import our_server
from tests.waiting import until

REQUEST = Request(max_tokens=8, top_k=10, stages=True)
SEEDED = Sampling(seed=7)


@pytest.fixture(scope="module")
def server(story_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnownEngine]:
    with our_server(story_model, tmp_path_factory.mktemp("served"), "--n-ctx", "256") as address:
        yield KnownEngine(name="served", url=address)


@pytest.fixture(scope="module")
def bench(server: KnownEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    home = tmp_path_factory.mktemp("home")
    bench = Workbench(Settings.from_environment({"LOGITBENCH_HOME": str(home)}))
    connected(bench, server)
    yield bench
    bench.close()


def connected(bench: Workbench, server: KnownEngine) -> None:
    bench.model_manager.connect(server)
    until(lambda: not bench.model.is_loading)
    assert bench.model.error is None and bench.model.server == server


def ended(bench: Workbench, trial: LiveTrial) -> LiveTrial:
    trial.job.result(60)
    until(lambda: trial.is_stored)
    return trial


def test_a_trial_is_stored_with_the_engine_that_answered(bench: Workbench, server: KnownEngine) -> None:
    trial = ended(bench, bench.trials.submit(Draft("Once upon a time", sampling=SEEDED, request=REQUEST)))
    assert (trial.model.name, trial.model.path) == ("story", server.url)
    assert bench.history is not None
    found = bench.history.trial(trial.id)
    assert found is not None and trial.completion is not None
    assert found.engine == EngineIdentity("served", server.url, "logitbench", "model")
    assert found.completion.steps == trial.completion.steps
    assert found.completion.text == trial.completion.text
    assert (found.request.top_k, found.request.stages) == (10, False)  # stages are not reported
    assert set(found.versions) == {"logitbench", "numpy"}  # llama.cpp ran elsewhere
    assert all(step.entropy is None and step.p_final is None for step in found.completion.steps)
    assert trial.status()["missing"] == NOT_REPORTED
    rows = bench.history.console.run("SELECT engine ->> 'name' AS name, logprobs_of FROM trials").table.to_pylist()
    assert {"name": "served", "logprobs_of": "model"} in rows


def test_a_trial_goes_on_from_its_ids_where_the_same_engine_is_connected(
    bench: Workbench, server: KnownEngine, story_model: Path
) -> None:
    first = ended(bench, bench.trials.submit(Draft("Once upon a time", sampling=SEEDED, request=REQUEST)))
    both = ended(bench, bench.trials.continue_trial(first, 4))
    assert list(both.steps.ids[:8]) == list(first.steps.ids)
    assert len(both.steps) == 12 and both.parent == first.id
    bench.model_manager.load(story_model)
    until(lambda: bench.model.engine)
    assert bench.model.server is None
    with pytest.raises(ConfigError, match="is not the loaded model"):
        bench.trials.continue_trial(first, 4)
    own = ended(bench, bench.trials.submit(Draft("Once upon a time", sampling=SEEDED, request=REQUEST)))
    assert own.engine is None and own.steps.ids == first.steps.ids  # the same file, there and here
    connected(bench, server)


def test_a_prompt_is_scored_there_as_here(bench: Workbench, server: KnownEngine, story_model: Path) -> None:
    there = ended(bench, bench.trials.score(Draft("Once upon a time", request=REQUEST)))
    bench.model_manager.load(story_model)
    until(lambda: bench.model.engine)
    here = ended(bench, bench.trials.score(Draft("Once upon a time", request=REQUEST)))
    for one, other in zip(there.prompt_steps, here.prompt_steps, strict=True):
        assert (one.id, one.rank) == (other.id, other.rank)
        assert one.logprob == (None if other.logprob is None else pytest.approx(other.logprob, abs=1e-3))
    connected(bench, server)


def test_an_engine_elsewhere_is_compared_with_a_file_here_and_comes_back(
    bench: Workbench, server: KnownEngine, story_model: Path
) -> None:
    arm = Arm(sampling=Sampling(temperature=0, seed=7), max_tokens=8)
    id = bench.compare.start(
        ComparisonPlan(prompt="Once upon a time", arms=(arm, replace(arm, model=str(story_model))))
    )
    bench.compare.wait(60)
    until(lambda: bench.model.engine is not None and bench.model.server)
    assert bench.model.server == server
    record = bench.compare.comparison(id)
    assert [answer.error for answer in record.answers] == ["", ""]
    there, here = (bench.trials.trial(answer.trial_id) for answer in record.answers)
    assert there.engine is not None and here.engine is None
    assert list(there.steps.ids) == list(here.steps.ids) and len(there.steps) == 8
    assert there.steps.vocabulary.hash == here.steps.vocabulary.hash  # our own API tells the whole vocabulary
    again = bench.compare.of_trials([there.id, here.id]).plan
    assert [arm.model for arm in again.arms] == ["", here.model.path]  # the address of a record is not asked


def test_a_trial_leaves_and_comes_back_as_json_without_its_address(bench: Workbench) -> None:
    trial = ended(bench, bench.trials.submit(Draft("Once", sampling=SEEDED, request=REQUEST)))
    assert bench.history is not None
    found = bench.history.trial(trial.id)
    assert found is not None
    text = to_json(found).decode()
    assert isinstance(bench.model.server, KnownEngine) and found.model.path == bench.model.server.url
    assert bench.model.server.url.partition("://")[2] not in text
    (back,) = trials_from_json(text)
    assert back.engine == EngineIdentity("served", "", "logitbench", "model")
    assert back.completion.steps == found.completion.steps


def test_a_trial_of_a_server_has_no_file_to_run_again(bench: Workbench) -> None:
    trial = ended(bench, bench.trials.submit(Draft("Once", sampling=SEEDED, request=REQUEST)))
    for task in (ReplayTask(record_of(trial)), DiffTask(record_of(trial), Other(embedded_model()), bench.settings)):
        with pytest.raises(ModelError, match="was answered by served, an external engine"):
            task.start().result(60)


def test_a_server_that_cannot_be_reached_is_reported_and_tried_again(bench: Workbench, server: KnownEngine) -> None:
    gone = KnownEngine(name="gone", url=f"http://127.0.0.1:{free_port()}")
    bench.model_manager.connect(gone)
    until(lambda: bench.model.error)
    assert "cannot be reached" in str(bench.model.error) and bench.model.name == "gone"
    bench.model_manager.load_again()
    until(lambda: bench.model.error)
    assert bench.model.server == gone
    connected(bench, server)


def test_ejecting_ends_what_runs(bench: Workbench, server: KnownEngine) -> None:
    trial = bench.trials.submit(Draft("Once", request=Request(max_tokens=200)))
    bench.model_manager.eject()
    until(trial.done)
    assert bench.model.engine is None and not bench.model.name
    connected(bench, server)
