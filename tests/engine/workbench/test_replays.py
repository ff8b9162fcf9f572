"""Replays with the real model: identical across restarts, the first difference, and every reason for a refusal."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from engine.comparing.replay import Replay
from engine.errors import ConfigError, ModelError
from engine.history import History, TrialRecord
from engine.models.identity import model_hash
from engine.pool.pool import Pool
from engine.protocol import Engine
from engine.settings import Settings
from engine.specs import PoolSpec, Request, Sampling
from engine.steps import StepTable
from engine.tasks import Stopped
from engine.workbench import Workbench
from engine.workbench.replays import CANDIDATES, Replayed, ReplayTask
from engine.workbench.trials import Draft, LiveTrial
from tests.engine.pool.test_continue import STATEFUL
from tests.engine.workbench.recorded import PROMPT, make_recorded, recorded
from tests.waiting import until

WITHIN_S = 60.0
ALMOST = 1e-3
"""Nats; processes on the same machine compute the same, up to the number of threads."""


def on_this(pool: Pool, trial: TrialRecord) -> Replayed:
    """Replay on an open engine."""

    def never(*_: object, **__: object) -> Engine:
        raise AssertionError("another engine was opened")

    return done(ReplayTask(trial, loaded=lambda: (pool, trial.model.hash), open_engine=never))


def done(task: ReplayTask) -> Replayed:
    return task.start().result(WITHIN_S)


def is_identical(replay: Replay, num_tokens: int) -> None:
    assert replay.is_identical and replay.num_same == replay.num_tokens == num_tokens
    assert replay.largest is not None and replay.largest < ALMOST


def refused(trial: TrialRecord, kind: type[Exception], why: str, **options: Any) -> None:
    with pytest.raises(kind, match=why):
        done(ReplayTask(trial, **options))


# Identical


def test_a_stored_trial_is_replayed_after_a_restart(pool: Pool, tmp_path: Path) -> None:
    path = tmp_path / "history.duckdb"
    trial = make_recorded(pool)
    with History.open(path) as history:
        history.record(trial).result()
    with History.open(path) as history:
        stored = history.trial(trial.id)
    assert stored is not None
    found = done(ReplayTask(stored))
    is_identical(found.replay, len(trial.completion.ids))
    assert found.model == Path(trial.model.path) and found.remarks == ()


@pytest.mark.parametrize("kind", STATEFUL)
def test_every_kind_of_sampler_draws_the_same_again(pool: Pool, kind: str) -> None:
    trial = make_recorded(pool, STATEFUL[kind])
    found = on_this(pool, trial)
    is_identical(found.replay, len(trial.completion.ids))


def test_a_random_seed_is_the_one_that_was_used(pool: Pool) -> None:
    trial = make_recorded(pool, Sampling())
    assert trial.sampling.seed is None
    is_identical(on_this(pool, trial).replay, len(trial.completion.ids))


def test_a_trial_without_figures_has_its_tokens_compared(pool: Pool) -> None:
    trial = make_recorded(pool, top_k=0)
    replay = on_this(pool, trial).replay
    assert replay.is_identical and replay.largest is None


def test_a_scored_prompt_is_scored_again(pool: Pool) -> None:
    trial = make_recorded(pool, max_tokens=0, prompt_logprobs=True)
    replay = on_this(pool, trial).replay
    assert replay.is_prompt
    is_identical(replay, len(trial.completion.prompt_ids))


def test_a_stop_string_ends_it_again(pool: Pool) -> None:
    whole = make_recorded(pool, Sampling(seed=5))
    stop = whole.completion.text[30:36]
    trial = make_recorded(pool, Sampling(seed=5), stop=(stop,))
    assert trial.completion.finish_reason == "stop" and len(trial.completion.ids) < 24
    is_identical(on_this(pool, trial).replay, len(trial.completion.ids))


def test_a_trial_that_was_stopped_is_replayed_as_far_as_it_went(pool: Pool) -> None:
    job = pool.submit(PROMPT, Sampling(seed=5), max_tokens=400, top_k=8, reuse_prefix=False)
    until(lambda: len(job.steps) >= 5)
    job.cancel()
    trial = recorded(pool, job)
    num = len(trial.completion.ids)
    assert 5 <= num < 400
    is_identical(on_this(pool, trial).replay, num)


# With a difference


def test_a_tampered_row_is_the_first_difference(pool: Pool, tmp_path: Path) -> None:
    path, copy = tmp_path / "history.duckdb", tmp_path / "copy.duckdb"
    trial = make_recorded(pool)
    ids = trial.completion.ids
    with History.open(path) as history:
        history.record(trial).result()
    shutil.copy(path, copy)
    other = next(candidate.id for candidate in trial.completion.steps[11].top if candidate.id != ids[11])
    with duckdb.connect(str(copy)) as connection:
        connection.execute("UPDATE steps SET id = ? WHERE position = 11 AND NOT is_prompt", [other])
    with History.open(copy) as history:
        stored = history.trial(trial.id)
    assert stored is not None and stored.completion.ids != ids
    replay = on_this(pool, stored).replay
    assert (replay.is_identical, replay.num_same) == (False, 11)
    found = replay.difference
    assert found is not None and found.replayed is not None
    assert (found.position, found.recorded.id, found.replayed.id) == (11, other, ids[11])
    for token, before, now in found.logprobs[:5]:
        assert before is not None and now == pytest.approx(before, abs=ALMOST), token
    text = trial.completion.steps.vocabulary.text
    assert replay.sentence == f"Differs first at token 12: {text(ids[11])!r} instead of {text(other)!r}."


def test_a_tampered_log_probability_is_the_largest_change(pool: Pool) -> None:
    trial = make_recorded(pool)
    trial.completion.steps.records["logprob"][7] -= 2.5
    replay = on_this(pool, trial).replay
    assert replay.is_identical and replay.largest_at == 7
    assert replay.largest == pytest.approx(2.5, abs=ALMOST)


def test_another_seed_gives_another_text(pool: Pool) -> None:
    trial = make_recorded(pool, Sampling(temperature=2.0, seed=5))
    other = replace(trial, completion=replace(trial.completion, seed=6))
    assert not on_this(pool, other).replay.is_identical


# Forced tokens, continued trials


def joined(*tables: StepTable) -> StepTable:
    columns = [
        np.concatenate([getattr(table, name) for table in tables])
        for name in ("records", "top_ids", "top_logprobs", "top_p_final")
    ]
    return StepTable.of(tables[0].vocabulary, *columns, is_prompt=False)


@pytest.mark.parametrize("kind", ["nothing of the kind", "xtc", "mirostat 2", "penalties and dry"])
def test_a_forced_token_is_taken_over_and_the_tokens_around_it_are_drawn_again(pool: Pool, kind: str) -> None:
    sampling = STATEFUL[kind]
    first = make_recorded(pool, sampling, max_tokens=8)
    ids = first.completion.ids
    forced = next(one.id for one in first.completion.steps[5].top if one.id != ids[5])
    job = pool.submit(
        [*first.completion.prompt_ids, *ids[:5], forced], sampling, generated=5, forced=1, max_tokens=12, top_k=8,
        reuse_prefix=False,
    )  # fmt: skip
    rest = job.result(60)
    steps = joined(StepTable.of(*_head(first.completion.steps, 5), is_prompt=False), rest.steps)
    timings = rest.timings._replace(num_generated=len(steps))  # as if one run had made them all
    completion = replace(rest, steps=steps, prompt_ids=first.completion.prompt_ids, timings=timings)
    trial = replace(first, completion=completion, request=replace(first.request, max_tokens=17))
    found = on_this(pool, trial)
    is_identical(found.replay, len(steps) - 1)
    assert found.replay.num_forced == 1
    assert found.remarks == ("1 forced token taken over, not drawn.",)


def _head(table: StepTable, num: int) -> tuple[Any, ...]:
    here = slice(num)
    return (
        table.vocabulary, table.records[here], table.top_ids[here], table.top_logprobs[here], table.top_p_final[here],
    )  # fmt: skip


def test_what_a_replay_does_not_repeat_is_reported(pool: Pool) -> None:
    trial = make_recorded(pool, max_tokens=2)
    timings = trial.completion.timings._replace(num_cached=5)
    changed = replace(
        trial, versions={**trial.versions, "numpy": "1.0", "gone": "1"}, node="b",
        completion=replace(trial.completion, timings=timings),
    )  # fmt: skip
    cached, node, version = on_this(pool, changed).remarks
    assert node == "Recorded on the node b, replayed on this machine, whose processor may round differently."
    assert cached.startswith("Recorded with 5 tokens of a cached prefix")
    assert version == f"Recorded with numpy 1.0, replayed with {np.__version__}."


# The engine


def test_an_engine_of_its_own_has_the_parameters_of_the_trial(pool: Pool, story_model: Path) -> None:
    opened: list[PoolSpec] = []

    def open_engine(model: str, spec: PoolSpec, **options: Any) -> Engine:
        opened.append(spec)
        return Pool(model, **spec.to_dict(), on_opening=options["on_opening"], on_progress=options["on_progress"])

    with Pool(story_model, parallel=2, n_ctx=256, type_k="q8_0", type_v="q8_0") as other:
        trial = make_recorded(other)
    task = ReplayTask(trial, loaded=lambda: (pool, trial.model.hash), open_engine=open_engine)
    is_identical(done(task).replay, len(trial.completion.ids))
    (spec,) = opened
    assert (spec.type_k, spec.type_v, spec.parallel) == ("q8_0", "q8_0", 1)
    assert (spec.padded_n_ctx, spec.resolved_n_ubatch) == (256, other.spec.resolved_n_ubatch)
    assert spec.threads == trial.completion.timings.threads


def test_candidates_are_recorded_where_the_trial_had_none(pool: Pool) -> None:
    trial = make_recorded(pool, Sampling(temperature=0), top_k=0)
    wrong = trial.completion.ids[3] + 1
    trial.completion.steps.records["id"][3] = wrong
    found = on_this(pool, trial).replay.difference
    assert found is not None and found.replayed is not None
    assert len(found.replayed.top) == CANDIDATES and found.recorded.top == []


def test_a_stop_ends_it(pool: Pool) -> None:
    trial = make_recorded(pool)
    with pool.held():
        task = ReplayTask(trial, loaded=lambda: (pool, trial.model.hash)).start()
        until(lambda: pool.num_open == 1, "no job was submitted")
        task.stop()
    assert task.wait(WITHIN_S)
    assert task.state == "stopped" and isinstance(task.error, Stopped)


# Refusals


@pytest.fixture
def moved(pool: Pool, story_model: Path, tmp_path: Path, models_folder: Path) -> tuple[TrialRecord, Path]:
    """A trial whose model is at a path of its own."""
    path = tmp_path / "elsewhere" / "mine.gguf"
    path.parent.mkdir()
    shutil.copy(story_model, path)
    trial = make_recorded(pool, max_tokens=4)
    return replace(trial, model=replace(trial.model, path=str(path))), path


def test_a_changed_model_file_is_refused(quantised_model: Path, tmp_path: Path, models_folder: Path) -> None:
    path = tmp_path / "mine.gguf"
    shutil.copy(quantised_model, path)
    with Pool(path, parallel=1) as pool:
        trial = make_recorded(pool, max_tokens=4)
    with path.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    refused(trial, ModelError, f"mine.gguf is not the file .* SHA-256 is {model_hash(path)}, .* {trial.model.hash}")


def test_a_missing_model_file_is_refused(moved: tuple[TrialRecord, Path]) -> None:
    trial, path = moved
    path.unlink()
    refused(replace(trial, model=replace(trial.model, hash="0" * 64)), ModelError, "mine.gguf, .* is missing")


def test_a_moved_model_file_is_found_by_its_content(
    moved: tuple[TrialRecord, Path], models_folder: Path, story_model: Path
) -> None:
    trial, path = moved
    target = models_folder / "renamed.gguf"
    shutil.move(path, target)
    model_hash(target)
    assert done(ReplayTask(trial)).model in (target, story_model)
    assert done(ReplayTask(trial, model=target)).model == target


def test_a_file_that_was_given_must_be_the_trials_own(moved: tuple[TrialRecord, Path], quantised_model: Path) -> None:
    trial, _ = moved
    refused(trial, ModelError, "is not the file that this trial was run with", model=quantised_model)


def test_a_trial_from_a_log_has_no_model(moved: tuple[TrialRecord, Path]) -> None:
    trial, _ = moved
    refused(replace(trial, model=replace(trial.model, hash="")), ModelError, "imported from a log")


# The workbench


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    home = tmp_path_factory.mktemp("home")
    bench = Workbench(Settings.from_environment({"LOGITBENCH_HOME": str(home)}))
    bench.load_default()
    until(lambda: bench.model.engine)
    yield bench
    bench.close()


def run(bench: Workbench, max_tokens: int = 12) -> LiveTrial:
    request = Request(max_tokens=max_tokens, top_k=8, reuse_prefix=False)
    trial = bench.trials.submit(Draft(PROMPT, sampling=Sampling(seed=5), request=request))
    trial.job.result(WITHIN_S)
    return trial


def replayed(bench: Workbench, trial: LiveTrial) -> Replayed:
    trial.job.result(WITHIN_S)
    found = bench.replays.start(trial).result(WITHIN_S)
    assert bench.replays.of(trial.id) is not None
    return found


def test_of_a_continued_trial_its_own_tokens_are_replayed(bench: Workbench) -> None:
    first = run(bench)
    both = bench.trials.continue_trial(first, 12)
    found = replayed(bench, both)
    assert found.replay.is_identical and found.replay.num_tokens == 12 == len(both.steps) - len(first.steps)
    (remark,) = [one for one in found.remarks if first.id in one]
    assert remark == f"The first 12 tokens come from trial {first.id} and were taken over: replay that one for them."


@pytest.mark.parametrize(
    ("sampling", "is_drawn_anew"), [(None, False), (Sampling(temperature=1.5, seed=9), False), (None, True)]
)
def test_of_a_branch_its_own_tokens_are_replayed_whatever_drew_those_before(
    bench: Workbench, sampling: Sampling | None, is_drawn_anew: bool
) -> None:
    first = run(bench)
    forced = next(one.id for one in first.steps[4].top if one.id != first.steps.ids[4])
    branch = bench.trials.branch(first, 4, [forced], sampling=sampling, num_tokens=8, is_drawn_anew=is_drawn_anew)
    found = replayed(bench, branch)
    assert found.replay.is_identical and found.replay.num_tokens == len(branch.steps) - 5
    assert found.replay.num_forced == 1 and "1 forced token taken over, not drawn." in found.remarks


def test_one_replay_at_a_time(bench: Workbench) -> None:
    trial = run(bench, 24)
    engine = bench.model.engine
    assert engine is not None
    with engine.held():
        task = bench.replays.start(trial)
        assert bench.replays.running is task and bench.machine.busy_with == "A replay"
        with pytest.raises(ConfigError, match="still running"):
            bench.replays.start(trial)
    assert task.result(WITHIN_S).replay.is_identical
    until(lambda: bench.replays.running is None and not bench.machine.busy_with)


def test_a_trial_without_a_result_is_refused(bench: Workbench) -> None:
    engine = bench.model.engine
    assert engine is not None
    with engine.held():
        trial = bench.trials.submit(Draft(PROMPT, request=Request(max_tokens=4)))
        with pytest.raises(ConfigError, match="no result to replay"):
            bench.replays.start(trial)
    trial.job.result(WITHIN_S)
