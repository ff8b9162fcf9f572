"""Beam search of the workbench: its best sequence is a trial, which the history, exports and imports have whole."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from engine.comparing.beam_search import find_beams
from engine.comparing.beams import BeamSpec
from engine.errors import ConfigError, PromptTooLong
from engine.history import TrialLabel
from engine.history.export import to_json
from engine.history.trial_file import trial_bytes, trial_from_bytes
from engine.history.trial_json import trials_from_json
from engine.ids import new_id
from engine.specs import Request, Sampling
from engine.workbench import Workbench
from engine.workbench.beam_manager import BeamTask
from engine.workbench.trial_records import record_of
from engine.workbench.trials import Draft, StoredTrial
from tests.fake_engine import FakeEngine
from tests.waiting import until

DRAFT = Draft("Once upon a time", sampling=Sampling(temperature=1.5, seed=3), request=Request(max_tokens=64, top_k=5))
SPEC = BeamSpec(num_beams=3, max_new_tokens=10, num_return_sequences=2)


@pytest.fixture(scope="module")
def task(bench: Workbench) -> BeamTask:
    task = bench.beams.find(DRAFT, SPEC)
    task.result(60)
    return task


def test_the_trial_has_the_best_sequence_with_its_exact_figures(bench: Workbench, task: BeamTask) -> None:
    trial = task.result()
    engine, _ = bench.model.loaded()
    found = find_beams(engine, engine.tokenize(DRAFT.prompt), SPEC)
    assert trial.id == task.trial_id and trial.label == TrialLabel.BEAMS
    assert trial.beams is not None and trial.beams.ids == found.ids and len(trial.beams.sequences) == 2
    best = found.sequences[0]
    assert trial.prompt_ids == tuple(engine.tokenize(DRAFT.prompt))
    assert tuple(trial.steps.ids) == best.ids
    assert [step.logprob for step in trial.steps] == pytest.approx(best.logprobs, abs=1e-3)
    assert trial.completion is not None and trial.completion.text == best.text
    assert trial.steps.k == 5 and trial.draft.sampling == Sampling(temperature=0.0)


def test_the_history_and_every_export_have_the_whole_search(bench: Workbench, task: BeamTask) -> None:
    trial = task.result()
    until(lambda: trial.is_stored)
    assert bench.history is not None
    stored = bench.history.trial(trial.id)
    assert stored is not None and stored.beams == trial.beams
    assert StoredTrial(stored).beams == trial.beams
    record = record_of(trial)
    assert trial_from_bytes(trial_bytes(record)).beams == trial.beams
    exported = to_json(record)
    (read,) = trials_from_json(exported.decode())
    assert read.beams == trial.beams and read.beams is not None
    assert read.beams.sequences[0].text == read.completion.text
    beams = msgspec.json.decode(exported)["beams"]
    assert beams["spec"]["num_beams"] == 3 and len(beams["parents"]) == len(beams["ids"]) == len(beams["logprobs"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("parents", [5]), ("ids", [1 << 30]), ("ends", []), ("ends", [{"node": 99, "score": 0.0}]),
        ("spec", {"beams": 1}), ("num_computed", -1), ("text", "no such field"),
    ],
)  # fmt: skip
def test_a_file_with_a_search_that_is_none_is_refused(task: BeamTask, name: str, value: Any) -> None:
    exported = msgspec.json.decode(to_json(record_of(task.result())))
    exported["beams"][name] = value
    with pytest.raises(ValueError):
        trials_from_json(msgspec.json.encode(exported).decode())


@pytest.mark.parametrize(("token", "error"), [(1 << 30, "outside the tokenizer"), (7, "not the best sequence")])
def test_a_file_whose_search_has_other_tokens_than_its_trial_is_refused(task: BeamTask, token: int, error: str) -> None:
    record = record_of(task.result())
    beams = record.beams
    assert beams is not None
    ids = [*beams.ids]
    ids[beams.ends[0].node] = token
    other = replace(record, beams=replace(beams, ids=tuple(ids)))
    with pytest.raises(ConfigError, match=error):
        trial_from_bytes(trial_bytes(other))
    with pytest.raises(ConfigError, match=error):
        trials_from_json(to_json(other).decode())


def test_another_trial_has_no_beams(bench: Workbench, task: BeamTask) -> None:
    branch = bench.trials.branch(task.result(), 0, task.result().steps.ids[:4], num_tokens=2)
    assert branch.job.result(60) and branch.beams is None and branch.parent == task.trial_id
    exported = msgspec.json.decode(to_json(record_of(branch)))
    assert "beams" not in exported


def test_a_search_can_be_stopped_and_leaves_no_trial_and_no_job(bench: Workbench) -> None:
    engine, _ = bench.model.loaded()
    task = bench.beams.find(DRAFT, BeamSpec(num_beams=8, max_new_tokens=200))
    with pytest.raises(ConfigError, match="still running"):
        bench.beams.find(DRAFT, SPEC)
    bench.beams.stop()
    assert task.wait(60) and task.state == "stopped"
    until(lambda: engine.num_open == 0, "a job is left behind")
    assert bench.trials.watch(task.trial_id) is None


def test_prompt_and_sequence_may_fill_the_context(bench: Workbench) -> None:
    engine, _ = bench.model.loaded()
    num_most = engine.capabilities.n_ctx - SPEC.max_new_tokens
    word = len(engine.tokenize("a a")) - len(engine.tokenize("a"))
    fits = "a" + " a" * ((num_most - len(engine.tokenize("a"))) // word)
    assert len(engine.tokenize(fits)) == num_most
    trial = bench.beams.find(replace(DRAFT, prompt=fits), SPEC).result(120)
    assert trial.beams is not None and tuple(trial.steps.ids) == trial.beams.best_ids
    task = bench.beams.find(replace(DRAFT, prompt=fits + " a"), SPEC)
    assert task.wait(60) and isinstance(task.error, PromptTooLong)


def test_a_search_of_a_model_that_is_not_loaded_any_more_is_not_kept(bench: Workbench, task: BeamTask) -> None:
    trial, trial_id = task.result(), new_id()
    assert trial.beams is not None
    with FakeEngine() as other, pytest.raises(ConfigError, match="Another model was loaded"):
        bench.trials.keep_beams(DRAFT, trial.prompt_ids, trial.beams, trial_id, other)
    assert bench.trials.watch(trial_id) is None


def test_a_prompt_that_cannot_be_searched_from(bench: Workbench) -> None:
    task = bench.beams.find(replace(DRAFT, prompt="once " * 600), SPEC)
    assert task.wait(60) and "max_new_tokens = 10" in str(task.error)
