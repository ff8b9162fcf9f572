"""What another model changes at a stored trial: real models, another vocabulary, stops, and what cannot be compared."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.errors import ConfigError, MemoryRefused, ModelError
from engine.history import TrialRecord
from engine.models import memory
from engine.models.synthetic import write_synthetic
from engine.pool.pool import Pool
from engine.settings import Settings
from engine.specs import PoolSpec, Request, Sampling
from engine.tasks import Stopped
from engine.workbench import Workbench, model_diffs
from engine.workbench.model_diffs import Diffed, DiffTask, Other
from engine.workbench.trials import Draft, LiveTrial
from tests.engine.workbench.recorded import PROMPT, make_recorded
from tests.waiting import until

WITHIN_S = 60.0


@pytest.fixture(scope="module")
def trial(pool: Pool) -> TrialRecord:
    return make_recorded(pool, max_tokens=40)


def compared(trial: TrialRecord, other: Other) -> Diffed:
    return DiffTask(trial, other, Settings.from_environment()).start().result(WITHIN_S)


def refused(trial: TrialRecord, other: Other, why: str, kind: type[Exception] = ConfigError) -> None:
    with pytest.raises(kind, match=why):
        compared(trial, other)


def test_a_quantisation_is_compared_at_every_token_of_the_answer(
    trial: TrialRecord, quantised_model: Path, home: Path
) -> None:
    found = compared(trial, Other(quantised_model))
    diff, completion = found.diff, trial.completion
    assert diff.steps.ids == diff.other_steps.ids == completion.ids
    assert diff.ids == (*completion.prompt_ids, *completion.ids) and not diff.is_prompt
    assert diff.kl.min() > 0 and diff.kl_mean == pytest.approx(diff.kl.mean())
    assert (found.file.quantisation, found.other_file.quantisation) == ("Q8_0", "Q4_0")
    assert found.moved is not None and found.moved < 0.25
    moved = np.abs(diff.steps.records["logprob"] - completion.steps.records["logprob"]).max()
    assert found.moved == pytest.approx(moved)
    assert not list(home.glob(".logits*"))


def test_the_figures_are_those_of_a_pool_on_the_other_model(trial: TrialRecord, quantised_model: Path) -> None:
    diff = compared(trial, Other(quantised_model)).diff
    with Pool(quantised_model, parallel=1, n_ctx=512) as pool:
        job = pool.submit(list(diff.ids), max_tokens=0, top_k=1, prompt_logprobs=True)
        scored = job.result(60).prompt_steps.records["logprob"][-len(diff.kl) :]
    assert diff.other_steps.records["logprob"] == pytest.approx(scored, abs=0.05)


def test_the_same_file_makes_no_difference(trial: TrialRecord, story_model: Path) -> None:
    diff = compared(trial, Other(story_model)).diff
    assert diff.sentence == "No difference: both distributions are the same at all 40 tokens."
    assert (diff.kl == 0).all() and not diff.change.any()


def test_another_type_of_keys_and_values(trial: TrialRecord) -> None:
    found = compared(trial, Other(settings=(("type_k", "q4_0"), ("type_v", "q4_0"))))
    assert 0 < found.diff.kl_mean < 0.1
    assert (found.spec.type_k, found.other_spec.type_k) == ("f16", "q4_0")
    assert found.file == found.other_file


def test_a_folder_is_compared_with_a_file_of_the_same_network(
    trial: TrialRecord, story_folder: Path, story_model: Path
) -> None:
    found = compared(trial, Other(story_folder))
    assert 0 < found.diff.kl_mean < 1e-2  # the file's matrices have eight bits
    assert (found.spec.dtype, found.other_spec.dtype, found.other_spec.type_k) == (None, "float32", "f32")
    refused(trial, Other(story_folder, (("type_k", "q8_0"), ("type_v", "q8_0"))), "have its dtype")
    assert compared(trial, Other(story_model, (("dtype", "bfloat16"),))).other_spec.type_k == "bf16"


def test_a_trial_of_a_folder_is_compared_with_other_precisions(story_folder: Path, float_model: Path) -> None:
    with Pool(story_folder, parallel=1, n_ctx=512, threads=1) as opened:
        trial = make_recorded(opened, max_tokens=20)
    found = compared(trial, Other(float_model))
    assert found.diff.kl_mean < 1e-6 and np.abs(found.diff.change).max() < 1e-3
    assert (found.other_spec.type_k, found.other_spec.flash_attn, found.other_spec.dtype) == ("f32", False, None)
    half = compared(trial, Other(settings=(("dtype", "bfloat16"),)))
    assert half.diff.kl_mean > found.diff.kl_mean


def test_the_same_file_of_floats_is_the_same_in_transformers(float_model: Path) -> None:
    exact = {"type_k": "f32", "type_v": "f32", "flash_attn": False, "share_weights": False}
    with Pool(float_model, **PoolSpec(parallel=1, n_ctx=512, threads=1, **exact).to_dict()) as opened:  # type: ignore[arg-type]
        trial = make_recorded(opened, max_tokens=40)
    found = compared(trial, Other(settings=(("dtype", "float32"),)))
    assert found.diff.kl_mean <= 1e-6 and np.abs(found.diff.change).max() <= 1e-3
    assert found.file.path == found.other_file.path and found.other_spec.dtype == "float32"


def test_a_trial_of_a_file_in_transformers_is_compared_with_llama_cpp(float_model: Path, story_folder: Path) -> None:
    with Pool(float_model, parallel=1, n_ctx=512, threads=1, dtype="float32") as opened:
        trial = make_recorded(opened, max_tokens=20)
    found = compared(trial, Other())
    assert (found.spec.dtype, found.other_spec.dtype, found.other_spec.type_k) == ("float32", None, "f32")
    assert found.file.path == found.other_file.path == float_model
    assert found.diff.kl_mean <= 1e-6 and np.abs(found.diff.change).max() <= 1e-3
    with Pool(story_folder, parallel=1, n_ctx=512, threads=1) as opened:
        refused(make_recorded(opened, max_tokens=4), Other(), "compare the model with itself")


def test_a_scored_prompt_is_compared_from_its_second_token(pool: Pool, quantised_model: Path) -> None:
    trial = make_recorded(pool, max_tokens=0, prompt_logprobs=True)
    diff = compared(trial, Other(quantised_model)).diff
    assert diff.is_prompt and diff.steps.ids == list(trial.completion.prompt_ids[1:])
    assert "prompt tokens" in diff.sentence


def test_a_trial_without_figures_is_compared_too(pool: Pool, quantised_model: Path) -> None:
    found = compared(make_recorded(pool, top_k=0), Other(quantised_model))
    assert found.moved is None and found.diff.kl_mean > 0


def test_the_model_itself_is_nothing_to_compare_with(trial: TrialRecord) -> None:
    refused(trial, Other(), "compare the model with itself")


def test_a_prompt_of_one_token_has_nothing_to_compare(pool: Pool, trial: TrialRecord, quantised_model: Path) -> None:
    completion = trial.completion
    steps = replace(completion, steps=completion.prompt_steps, prompt_ids=completion.prompt_ids[:1])
    empty = replace(steps, steps=make_recorded(pool, max_tokens=0).completion.steps)
    refused(replace(trial, completion=empty), Other(quantised_model), "no tokens to compare")


def test_another_vocabulary_is_refused_with_what_differs(trial: TrialRecord, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_synthetic("tiny", path)
    size = len(trial.completion.steps.vocabulary)
    refused(
        trial, Other(path),
        rf"tiny.gguf has another vocabulary .*: {size:,} tokens against [\d,]+, and token \d+ is '.*' in one and '",
    )  # fmt: skip


def test_a_changed_model_file_is_refused(trial: TrialRecord, quantised_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    shutil.copy(quantised_model, path)
    changed = replace(trial, model=replace(trial.model, path=str(path), hash="0" * 64))
    refused(changed, Other(quantised_model), "is not the file that this trial was run with", ModelError)


def test_a_file_that_is_no_model_is_refused(trial: TrialRecord, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(b"GGUF")
    refused(trial, Other(path), "other.gguf", ModelError)


def test_too_little_memory_is_refused_before_anything_is_loaded(
    trial: TrialRecord, quantised_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 1 << 20)
    refused(trial, Other(quantised_model), "needs more memory than is available", MemoryRefused)


def test_too_little_room_on_the_disk_is_refused(
    trial: TrialRecord, quantised_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_diffs, "row_bytes", lambda num_vocab: 1 << 50)
    refused(trial, Other(quantised_model), "The logits of 40 tokens, .* cannot be written", ModelError)


def test_a_setting_out_of_range_is_refused(trial: TrialRecord) -> None:
    refused(trial, Other(settings=(("type_k", "q9"),)), "type_k")


@pytest.mark.parametrize("doing", ["Reading the vocabulary", "Loading", "Scoring"])
def test_a_stop_ends_it_at_any_moment(
    trial: TrialRecord, quantised_model: Path, doing: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = DiffTask(trial, Other(quantised_model), Settings.from_environment())
    update = task.update

    def stopping(share: float = 0.0, said: str | None = None, left_s: float | None = None, **named: str) -> None:
        update(share, said or named.get("doing"), left_s)
        if (said or named["doing"]).startswith(doing):
            task.stop()

    monkeypatch.setattr(task, "update", stopping)
    task.start()
    assert task.wait(WITHIN_S)
    assert task.state == "stopped" and isinstance(task.error, Stopped)
    assert not list(home.glob(".logits*"))


# The workbench


@pytest.fixture
def bench(home: Path) -> Iterator[Workbench]:
    bench = Workbench(Settings.from_environment())
    yield bench
    bench.close()


def test_the_workbench_holds_what_was_compared(bench: Workbench, quantised_model: Path) -> None:
    bench.load_default()
    until(lambda: bench.model.engine)
    draft = Draft(PROMPT, sampling=Sampling(seed=5), request=Request(max_tokens=12, top_k=8))
    trial: LiveTrial = bench.trials.submit(draft)
    trial.job.result(WITHIN_S)
    other = Other(quantised_model)
    assert bench.diffs.of(trial.id, other) is None
    task = bench.diffs.start(trial, other)
    with pytest.raises(ConfigError, match="still running"):
        bench.diffs.start(trial, Other(settings=(("type_k", "q8_0"),)))
    assert bench.diffs.running is task and bench.diffs.of(trial.id, other) is task
    assert task.result(WITHIN_S).diff.kl_mean > 0
    assert bench.diffs.of(trial.id, Other(settings=(("type_k", "q8_0"),))) is None
    until(lambda: not bench.machine.busy_with)


def test_pool_spec_of_one_sequence_keeps_its_batches() -> None:
    assert replace(PoolSpec(n_ctx=512), parallel=1, n_batch=None, n_ubatch=512).resolved_n_batch >= 512
