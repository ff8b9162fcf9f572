"""Workbench with the shipped model: trials, their continuation, what is saved, and what happens if saving fails."""

import gc
import math
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import ConfigError, HistoryError, HistoryLocked, ModelError
from engine.history import History, TrialLabel, write_inbox
from engine.history.database_writer import Cursor, DatabaseWriter
from engine.history.export import to_csv, to_json
from engine.settings import Settings
from engine.specs import Origin, Request, Sampling
from engine.workbench import Workbench, history_manager, trial_manager, unsaved_calls
from engine.workbench.trial_records import record_of
from engine.workbench.trials import Draft, LiveTrial, perplexity
from tests.engine.workbench.conftest import ended, opened
from tests.waiting import until

SEEDED = Sampling(seed=7)


def request(max_tokens: int, **others: object) -> Request:
    return Request.from_dict({"max_tokens": max_tokens, "top_k": 10, "reuse_prefix": False, **others})


def test_two_halves_are_one_whole(bench: Workbench) -> None:
    first = ended(bench.trials.submit(Draft("Once upon a time", sampling=SEEDED, request=request(12))))
    both = ended(bench.trials.continue_trial(first, 12))
    whole = ended(bench.trials.submit(Draft("Once upon a time", sampling=SEEDED, request=request(24))))
    assert both.completion is not None and whole.completion is not None
    assert both.completion.ids == whole.completion.ids
    assert both.completion.text == whole.completion.text
    assert both.draft == whole.draft
    assert both.parent == first.id and both.prompt_ids == first.prompt_ids


def test_steps_are_a_run_taken_slowly(bench: Workbench) -> None:
    draft = Draft("The king said", sampling=SEEDED, request=request(3))
    trial = ended(bench.trials.step(draft, None))
    for _ in range(2):
        trial = ended(bench.trials.step(draft, trial))
    assert trial.steps.ids == ended(bench.trials.submit(draft)).steps.ids


def test_regenerate_keeps_the_prompt_and_changes_the_seed(bench: Workbench) -> None:
    trial = ended(bench.trials.submit(Draft("In the wood", sampling=SEEDED, request=request(8))))
    again = ended(bench.trials.regenerate(trial))
    assert again.prompt_ids == trial.prompt_ids
    assert again.seed != trial.seed
    assert again.parent == trial.id


def test_scoring_gives_the_prompt_its_figures_and_generates_nothing(bench: Workbench) -> None:
    trial = ended(bench.trials.score(Draft("Once upon a time there was a king.", request=request(64))))
    assert len(trial.steps) == 0
    assert all(step.logprob is not None for step in trial.prompt_steps[1:])
    found = perplexity(trial.prompt_steps)
    assert found is not None and 1 < found < 4096
    assert trial.ending()["sentence"] == "Only the prompt was scored."


@pytest.mark.slow
def test_a_full_context_holds_what_fits_and_one_token_less_can_go_on(bench: Workbench) -> None:
    prompt = "Once upon a time"
    pool, _ = bench.model.loaded()
    n_ctx = pool.capabilities.n_ctx
    ends = [token for token in range(len(pool.vocabulary)) if pool.vocabulary.is_end(token)]
    endless = replace(SEEDED, logit_bias=tuple((token, -math.inf) for token in ends))
    full = ended(bench.trials.submit(Draft(prompt, sampling=endless, request=request(n_ctx + 88))))
    room = n_ctx - len(full.prompt_ids)
    assert len(full.steps) == room + 1
    assert full.status()["num_context"] == n_ctx and not full.can_continue
    assert bench.replays.measure_shift(pool, full).num_tokens == len(full.steps)
    assert full.ending()["sentence"] == f"The context of {n_ctx:,} tokens is full."
    nearly = ended(bench.trials.submit(Draft(prompt, sampling=endless, request=request(room))))
    assert nearly.status()["num_context"] == n_ctx - 1 and nearly.can_continue
    assert nearly.ending()["sentence"] == f"Stopped at the {room:,}-token limit."
    more = ended(bench.trials.continue_trial(nearly, 128))
    assert more.steps.ids == full.steps.ids and more.status()["num_context"] == n_ctx


def test_the_shift_of_an_exact_repetition_is_small(bench: Workbench) -> None:
    trial = ended(bench.trials.submit(Draft("Once upon a time", sampling=SEEDED, request=request(16))))
    shift = bench.replays.measure_shift(bench.trials.engine_of(trial), trial)
    assert shift.num_tokens == 16
    assert 0 <= shift.p99 <= shift.largest < 1


def test_a_flip_is_what_the_model_draws_with_the_same_random_number(bench: Workbench) -> None:
    draft = Draft("Once upon a time", sampling=SEEDED, request=request(12, top_k=64, stages=True))
    trial = ended(bench.trials.submit(draft))
    pool, _ = bench.model.loaded()
    num_found = 0
    for index, token in enumerate(trial.steps.ids):
        for flip in bench.trials.flips(trial.id, index):
            way = 1 if flip.is_above else -1
            is_whole = flip.parameter == "top_k"
            beyond, inside = (flip.value, flip.value - way) if is_whole else (
                flip.value * (1 + 1e-4 * way), flip.value * (1 - 1e-4 * way),
            )  # fmt: skip
            for value, expected in ((beyond, flip.id), (inside, token)):
                changed = {flip.parameter: int(value) if is_whole else value}
                ids = [*trial.prompt_ids, *trial.steps.ids[:index]]
                sampling = Sampling.from_dict({**SEEDED.to_dict(), **changed})
                assert pool.submit(ids, sampling, generated=index, max_tokens=1).result(60).ids == [expected]
            num_found += 1
    assert num_found > 12


def test_flips_that_candidates_do_not_decide_are_errors(bench: Workbench) -> None:
    grammar = replace(SEEDED, grammar="root ::= [a-z ]+")
    trial = ended(bench.trials.submit(Draft("Once", sampling=grammar, request=request(2))))
    with pytest.raises(ConfigError, match="sampled with grammar cannot be sampled again"):
        bench.trials.flips(trial.id, 0)
    for id, step in ((trial.id, 2), ("nobody", 0)):
        with pytest.raises(ConfigError, match="no such token"):
            bench.trials.flips(id, step)


def test_a_trial_is_kept_and_read_back_the_same(bench: Workbench) -> None:
    trial = ended(bench.trials.submit(Draft("A little girl", sampling=SEEDED, request=request(8))))
    until(lambda: trial.is_stored)
    assert bench.history is not None
    kept = bench.history.trial(trial.id)
    assert kept is not None and trial.completion is not None
    assert kept.completion.ids == trial.completion.ids
    assert kept.completion.steps.records["logprob"].tolist() == trial.steps.records["logprob"].tolist()
    assert bench.trials.recent(1)[0].id == trial.id == bench.trials.newest_id()


def test_a_failure_of_the_history_is_over_once_a_trial_is_kept_again(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_record: object) -> None:
        raise HistoryError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(bench.history, "record", full)
        missed = ended(bench.trials.submit(Draft("A girl", request=request(2))))
        until(lambda: bench.history_error is not None)
    trial = ended(bench.trials.submit(Draft("A girl", request=request(2))))
    until(lambda: trial.is_stored)
    assert bench.history_error is None
    until(lambda: missed.is_stored)
    assert bench.history is not None and bench.history.trial(missed.id) is not None


def test_a_trial_that_could_not_be_kept_is_kept_later_unless_it_was_deleted(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_manager, "LOOK_S", 0.1)
    write, is_full = DatabaseWriter.write, threading.Event()

    def write_or_fail(file: DatabaseWriter, job: Callable[[Cursor], object]) -> Future[object]:
        if not is_full.is_set():
            return write(file, job)
        failed: Future[object] = Future()
        failed.set_exception(HistoryError("the disk is full"))
        return failed

    monkeypatch.setattr(DatabaseWriter, "write", write_or_fail)
    is_full.set()
    kept, deleted, restored = (ended(bench.trials.submit(Draft("A girl", request=request(2)))) for _ in range(3))
    until(lambda: bench.history_error is not None)
    for trial in (deleted, restored):
        with pytest.raises(HistoryError, match="full"):
            bench.trials.delete(trial.id)
    with pytest.raises(HistoryError, match="full"):
        bench.trials.restore(restored.id)
    is_full.clear()
    until(lambda: kept.is_stored and restored.is_stored)
    until(lambda: bench.history_error is None)
    assert bench.history is not None
    assert bench.history.trial(kept.id) is not None and bench.history.trial(restored.id) is not None
    assert not deleted.is_stored and bench.history.trial(deleted.id) is None


def called(bench: Workbench) -> LiveTrial:
    return ended(bench.trials.submit(Draft("A girl", request=request(2)), TrialLabel.API))


def test_of_calls_that_cannot_be_stored_the_latest_wait(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_manager, "LOOK_S", 0.1)
    monkeypatch.setattr(unsaved_calls, "MOST_BYTES", 4 * unsaved_calls.CALL_BYTES)
    write, is_full = DatabaseWriter.write, threading.Event()

    def write_or_fail(file: DatabaseWriter, job: Callable[[Cursor], object]) -> Future[object]:
        if is_full.is_set():
            raise HistoryError("the disk is full")
        return write(file, job)

    monkeypatch.setattr(DatabaseWriter, "write", write_or_fail)
    is_full.set()
    refs = []
    for _ in range(8):
        trial = called(bench)
        refs.append((trial.id, weakref.ref(trial)))
    del trial
    until(lambda: gc.collect() >= 0 and not any(ref() for _, ref in refs[:5]), "they are all in memory", 30)
    is_full.clear()
    history = bench.history
    assert history is not None
    until(lambda: history.trial(refs[-1][0]), "the latest is not stored", 30)
    until(lambda: [bool(history.trial(id)) for id, _ in refs] == [False] * 5 + [True] * 3, "others are stored", 30)


def deleted(bench: Workbench, *, is_kept: bool) -> "tuple[str, weakref.ref[LiveTrial]]":
    trial = ended(bench.trials.submit(Draft("A boy", request=request(2), is_kept=is_kept)))
    if is_kept:
        until(lambda: trial.is_stored)
    bench.trials.delete(trial.id)
    return trial.id, weakref.ref(trial)


def test_what_was_deleted_does_not_stay_in_memory(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    (id, kept), (_, unkept) = (deleted(bench, is_kept=is_kept) for is_kept in (True, False))
    ended(bench.trials.submit(Draft("A girl", request=request(2))))
    assert kept()
    assert unkept()
    monkeypatch.setattr(trial_manager, "KEPT_S", 0)
    monkeypatch.setattr(trial_manager, "FORGET_EVERY_S", 0)
    ended(bench.trials.submit(Draft("A girl", request=request(2))))
    gc.collect()
    assert not kept()
    assert not unkept()
    bench.trials.restore(id)
    again = bench.trials.trial(id).completion
    assert again is not None
    assert len(again.steps) == 2


def test_an_unsaved_trial_that_ended_long_ago_can_be_restored(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise HistoryError("the disk is full")

    monkeypatch.setattr(History, "record", fail)
    trial = ended(bench.trials.submit(Draft("A boy", request=request(2))))
    monkeypatch.setattr(trial_manager, "FORGET_EVERY_S", 0)
    monkeypatch.setattr(LiveTrial, "age_s", property(lambda _: 2.0 * trial_manager.KEPT_S))
    bench.trials.delete(trial.id)
    ended(bench.trials.submit(Draft("A girl", request=request(2))))
    bench.trials.restore(trial.id)
    assert bench.trials.watch(trial.id) is trial


def test_delete_and_restore(bench: Workbench) -> None:
    trial = ended(bench.trials.submit(Draft("A boy", request=request(2))))
    until(lambda: trial.is_stored)
    bench.trials.delete(trial.id)
    assert bench.trials.watch(trial.id) is None
    assert trial.id not in {one.id for one in bench.trials.recent(50)}
    bench.trials.restore(trial.id)
    assert bench.trials.watch(trial.id) is not None


@pytest.mark.parametrize("label", ["", TrialLabel.API])
def test_a_trial_that_is_deleted_while_it_runs_or_is_stored_stays_deleted(bench: Workbench, label: str) -> None:
    history = bench.history
    assert history is not None
    running = bench.trials.submit(Draft("A boy", request=request(200)), label)
    bench.trials.delete(running.id)
    running.job.cancel()
    for _ in range(5):
        late = ended(bench.trials.submit(Draft("A boy", request=request(2)), label))
        bench.trials.delete(late.id)
        assert history.trial(late.id) is None
    last = ended(bench.trials.submit(Draft("A boy", request=request(2)), label))
    until(lambda: last.is_stored)
    assert history.trial(running.id) is None and history.trial(late.id) is None
    bench.trials.restore(running.id)
    until(lambda: history.trial(running.id))


def test_what_is_not_to_be_kept_is_not_stored_but_can_be_downloaded(bench: Workbench) -> None:
    trial = ended(bench.trials.submit(Draft("A secret", request=request(4), is_kept=False)))
    assert bench.trials.watch(trial.id) is trial
    assert bench.history is not None and bench.history.trial(trial.id) is None
    assert b"A secret" in to_json(record_of(trial))
    assert to_csv(record_of(trial)).count(b"\n") == 1 + len(trial.prompt_ids) + len(trial.steps)


def test_a_cancelled_trial_says_so_and_can_go_on(bench: Workbench) -> None:
    trial = bench.trials.submit(Draft("Once upon a time", request=request(400)))
    until(lambda: len(trial.steps) > 2)
    bench.trials.stop(trial)
    ended(trial)
    assert trial.ending()["sentence"] == "You stopped it."
    assert trial.can_continue


def test_of_a_call_that_was_stopped_nobody_reads_that_it_was_them(bench: Workbench) -> None:
    trial = bench.trials.submit(
        Draft("Once upon a time", request=request(400)), origin=Origin(lane="api", client="curl/8")
    )
    until(lambda: len(trial.steps) > 2)
    bench.trials.stop(trial)
    ended(trial)
    assert trial.ending()["sentence"] == "It was stopped: its client left, or somebody stopped it here."


def test_running_side_by_side_is_noticed(bench: Workbench) -> None:
    trials = [bench.trials.submit(Draft("Once upon a time", request=request(60))) for _ in range(2)]
    assert all(ended(trial).has_neighbours for trial in trials)


def test_tokens_of_another_model_are_refused(bench: Workbench) -> None:
    trial = ended(bench.trials.submit(Draft("Once", request=request(2))))
    trial.model = type(trial.model)("Other", "other.gguf", "0" * 64, "F16", 1)
    with pytest.raises(ConfigError, match="run with Other"):
        bench.trials.continue_trial(trial, 4)


def test_an_address_without_a_trial_is_said_plainly(bench: Workbench) -> None:
    for wrong in ("01a1fab9-91c7-7816-819a-8fcdffdfbaff", "nonsense"):
        with pytest.raises(ConfigError, match="does not exist"):
            bench.trials.trial(wrong)


def test_without_a_model_nothing_runs_and_the_reason_is_given(tmp_path: Path) -> None:
    bench = Workbench(Settings.from_environment({"LOGITBENCH_HOME": str(tmp_path)}))
    with pytest.raises(ModelError, match="No model is loaded"):
        bench.trials.submit(Draft("Once"))
    bench.model_manager.load(tmp_path / "missing.gguf")
    until(lambda: bench.model.error)
    with pytest.raises(ModelError, match=r"missing\.gguf"):
        bench.trials.submit(Draft("Once"))
    bench.close()


def test_a_load_that_is_abandoned_leaves_no_worker(tmp_path: Path) -> None:
    bench = opened(tmp_path)
    bench.model_manager.eject()
    bench.close()
    assert bench.model.engine is None and not bench.model.is_loading


@pytest.mark.slow
def test_a_locked_history_does_not_stop_trials(tmp_path: Path) -> None:
    program = (
        "import pathlib, time; from engine.history import History;"
        f"h = History.open(pathlib.Path({str(tmp_path / 'history.duckdb')!r})); print(1, flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert owner.stdout is not None and owner.stdout.readline()
        bench = opened(tmp_path)
        until(lambda: bench.model.engine)
        assert isinstance(bench.history_error, HistoryLocked)
        assert str(owner.pid) in str(bench.history_error)
        trial = ended(bench.trials.submit(Draft("Once", request=request(4))))
        assert bench.trials.newest_id() == trial.id
        assert to_csv(record_of(trial))
        until(lambda: bench.kept.is_handed_over(trial.id), "the trial is not handed over", 30)
        call = called(bench)
        until(lambda: call.is_stored, "the call is not handed over", 30)
        for each in (trial, call):
            with pytest.raises(ConfigError, match="delete it there"):
                bench.trials.delete(each.id)
        assert call.id not in bench.kept._missed, "it stays in memory"
        bench.close()
    finally:
        owner.kill()
        owner.communicate()
    bench = opened(tmp_path)
    for each in (trial, call):
        until(lambda id=each.id: bench.history and bench.history.trial(id), "the trial is not handed over", 30)  # type: ignore[misc]
    bench.close()


def test_a_history_that_was_locked_is_opened_when_its_owner_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_manager, "LOOK_S", 0.1)
    program = (
        "import pathlib, sys; from engine.history import History;"
        f"h = History.open(pathlib.Path({str(tmp_path / 'history.duckdb')!r})); print(1, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdin is not None and owner.stdout is not None and owner.stdout.readline()
        bench = opened(tmp_path)
        assert isinstance(bench.history_error, HistoryLocked)
        until(lambda: bench.model.engine)
        earlier = ended(bench.trials.submit(Draft("Before", request=request(4))))
        owner.kill()
    until(lambda: bench.history, "the history stays closed", 30)
    assert bench.history_error is None
    until(lambda: bench.model.engine)
    trial = ended(bench.trials.submit(Draft("Once", request=request(4))))
    until(lambda: trial.is_stored, "the trial is not kept", 30)
    bench.close()
    with History.open(tmp_path / "history.duckdb") as history:
        assert history.trial(trial.id) is not None
        assert history.trial(earlier.id) is not None


def test_the_example_that_ships_opens_where_nothing_ran_yet(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = record_of(ended(bench.trials.submit(Draft("Once upon a time", sampling=SEEDED, request=request(8)))))
    model = replace(record.model, path=Path(record.model.path).name)
    write_inbox(tmp_path, replace(record, label=TrialLabel.RECORDED, model=model))
    monkeypatch.setattr(trial_manager, "shipped", tmp_path.joinpath)
    tmp_path.joinpath("demo").symlink_to(tmp_path)
    fresh = Workbench(Settings.from_environment({"LOGITBENCH_HOME": str(tmp_path / "home")}))
    newest = fresh.trials.newest_id()
    assert newest is not None
    example = fresh.trials.trial(newest)
    assert example.label == "recorded" and example.done() and len(example.steps) == 8
    assert fresh.trials.recent(5) == []
    fresh.close()
