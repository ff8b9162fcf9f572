"""Store: what is saved is read back unchanged."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import numpy as np
import pytest

from engine.errors import ConfigError, HistoryError
from engine.history import EngineIdentity, History, TrialLabel, TrialRecord
from engine.history.columns import CHUNK
from engine.specs import Request, Sampling
from engine.step_parts import INSPECTED, RECORD
from engine.steps import StepTable
from tests.engine.history.trial_maker import NASTY, VOCABULARY, make_steps, make_trial, uuid7, with_stages


def kept(history: History, trial: TrialRecord) -> TrialRecord:
    """Return the trial after a round trip through the database."""
    history.record(trial).result(60)
    found = history.trial(trial.id)
    assert found is not None
    return found


def assert_same_steps(found: StepTable, expected: StepTable) -> None:
    """Assert that every number is equal, bit by bit."""
    for name in RECORD.names or ():
        np.testing.assert_array_equal(found.records[name], expected.records[name], strict=True, err_msg=name)
    for column in ("top_ids", "top_logprobs", "top_p_final"):
        np.testing.assert_array_equal(getattr(found, column), getattr(expected, column), strict=True, err_msg=column)


def test_steps_come_back_exactly(history: History) -> None:
    trial = make_trial(40, 256)
    found = kept(history, trial).completion
    assert_same_steps(found.steps, trial.completion.steps)
    assert found.steps.vocabulary == VOCABULARY
    assert (found.text, found.ids, found.id) == (trial.completion.text, trial.completion.ids, trial.id)
    assert found.timings == trial.completion.timings


def test_stages_come_back_exactly_beside_trials_without(history: History) -> None:
    trials = [
        with_stages(make_trial(5, 8)),
        make_trial(4, 3),
        with_stages(make_trial(0, 8)),
        with_stages(make_trial(1, 1)),
    ]
    trials.append(with_stages(make_trial(7, 4, sampling=Sampling(mirostat=2))))
    wait([history.record(replace(trial, label=TrialLabel.API)) for trial in trials])
    for trial in trials:
        found = history.trial(trial.id)
        assert found is not None
        assert found.completion.steps == trial.completion.steps or not len(trial.completion.steps)
        assert [step.stages for step in found.completion.steps] == [step.stages for step in trial.completion.steps]
    assert trials[-1].completion.steps[0].stages[-1].name == "mirostat"


def test_stages_that_do_not_fit_the_sampling_are_left_out(history: History) -> None:
    trial = with_stages(make_trial(5, 8))
    found = kept(history, replace(trial, sampling=Sampling(top_k=0)))
    assert found.completion.steps[0].stages == [] and found.completion.steps.ids == trial.completion.steps.ids


def test_a_trial_longer_than_one_insert_comes_back_in_order(history: History) -> None:
    few = make_steps(97, 4)
    repeated = np.arange(2 * CHUNK + 5) % len(few)
    steps = StepTable.of(
        VOCABULARY,
        few.records[repeated],
        few.top_ids[repeated],
        few.top_logprobs[repeated],
        few.top_p_final[repeated],
        is_prompt=False,
    )
    trial = make_trial()
    trial = replace(trial, completion=replace(trial.completion, steps=steps))
    assert_same_steps(kept(history, trial).completion.steps, steps)


def test_figures_that_were_not_taken_stay_none(history: History) -> None:
    prompt_steps = make_steps(3, is_prompt=True)
    prompt_steps.records["flags"][0] = 0  # nothing precedes the first token of a prompt
    prompt_steps.records["p_final"] = np.nan
    prompt_steps.records["draw"] = np.nan
    prompt_steps.records["num_kept"] = 0
    trial = make_trial(2)
    found = kept(history, replace(trial, completion=replace(trial.completion, prompt_steps=prompt_steps)))
    first, second, _ = found.completion.prompt_steps
    assert first.id == prompt_steps[0].id
    assert (first.logprob, first.rank, first.entropy, first.normaliser, first.top) == (None, None, None, None, [])
    assert (second.logprob, second.top) == (prompt_steps[1].logprob, prompt_steps[1].top)
    assert (second.p_final, second.draw, second.num_kept) == (None, None, None)


def test_a_trial_without_figures_keeps_its_tokens(history: History) -> None:
    trial = make_trial(5, 0)
    found = kept(history, trial)
    assert found.completion.ids == trial.completion.ids
    assert [step.top for step in found.completion.steps] == [[]] * 5
    assert [step.draw for step in found.completion.steps] == [step.draw for step in trial.completion.steps]
    assert history.recent()[0].mean_surprise_bits is None


def test_infinities_survive(history: History) -> None:
    trial = make_trial(2)
    steps = trial.completion.steps
    steps.records["logprob"][0] = -np.inf
    steps.top_logprobs[0, -1] = -np.inf
    found = kept(history, replace(trial, sampling=Sampling(logit_bias=((7, -np.inf), (9, 1.5)), dry_base=np.inf)))
    assert_same_steps(found.completion.steps, steps)
    assert found.sampling.logit_bias == ((7, -np.inf), (9, 1.5))
    assert found.sampling.dry_base == np.inf


def test_candidates_cut_from_the_front_stay_cut(history: History) -> None:
    trial = make_trial(1)
    trial.completion.steps.top_p_final[0] = [0, 0, 0.75, 0, 0.25, 0, 0, 0]
    found = kept(history, trial)
    assert [candidate.p_final for candidate in found.completion.steps[0].top] == [0, 0, 0.75, 0, 0.25, 0, 0, 0]


def test_text_survives_byte_for_byte(history: History) -> None:
    trial = make_trial(prompt=NASTY, label=NASTY, messages=({"role": "user", "content": NASTY},), versions={"x": NASTY})
    steps = trial.completion.steps
    steps.records["id"][:] = [256, 0, 0xF0, 0x9F, 0xA7, 0x91]
    trial = replace(trial, completion=replace(trial.completion, text=steps.text + NASTY))
    found = kept(history, trial)
    assert (found.prompt, found.label, found.messages, found.versions) == (NASTY, NASTY, trial.messages, {"x": NASTY})
    assert found.completion.text == trial.completion.text
    assert found.completion.steps.vocabulary.join(found.completion.ids) == NASTY.encode() + "\0🧑".encode()


def test_all_parameters_come_back(history: History) -> None:
    sampling = Sampling(temperature=0, seed=3, samplers=("top_k",), grammar='root ::= "a"', dry_sequence_breakers=())
    trial = make_trial(sampling=sampling, request=Request(stop=("\n\n", "END"), top_k=8, generated=2), parent=uuid7())
    answering = EngineIdentity(NASTY, "http://localhost:8080", "llama-server", "after samplers")
    trial = replace(trial, unknown_fields=(NASTY, "best_of"), engine=answering, client=NASTY, node=NASTY)
    found = kept(history, trial)
    names = (
        "sampling", "request", "pool", "model", "versions", "parent", "created_at", "label", "unknown_fields", "engine",
        "client", "node",
    )  # fmt: skip
    assert {name: getattr(found, name) for name in names} == {name: getattr(trial, name) for name in names}
    assert found.completion.seed == trial.completion.seed
    assert found.completion.prompt_ids == trial.completion.prompt_ids


def test_recent_is_newest_first_and_short(history: History) -> None:
    start = datetime(2026, 11, 20, tzinfo=UTC)
    for number in range(5):
        history.record(make_trial(created_at=start + timedelta(hours=number), prompt=f"\n  prompt {number} \nmore"))
    trial = make_trial(messages=({"role": "user", "content": "Hello\nyou"}, {"role": "assistant", "content": "x"}))
    history.record(trial).result(60)
    assert [summary.title for summary in history.recent(3)] == ["Hello", "prompt 4", "prompt 3"]
    newest = history.recent(1)[0]
    assert (newest.id, newest.created_at, newest.num_generated) == (trial.id, trial.created_at, 6)
    assert newest.output_start == trial.completion.text
    assert newest.decode_per_s == pytest.approx(5 / 0.4)
    surprises = [-step.logprob / np.log(2) for step in trial.completion.steps if step.logprob is not None]
    assert newest.mean_surprise_bits == pytest.approx(np.mean(surprises))


def test_a_scored_prompt_has_its_own_surprise(history: History) -> None:
    trial = make_trial(0)
    scored = make_steps(4, is_prompt=True)
    history.record(replace(trial, completion=replace(trial.completion, prompt_steps=scored))).result(60)
    assert history.recent()[0].mean_surprise_bits == pytest.approx(-scored.records["logprob"].mean() / np.log(2))


def test_delete_hides_and_restore_brings_back(history: History) -> None:
    trial = make_trial()
    history.record(trial)
    assert history.delete(trial.id)
    assert (history.recent(), history.trial(trial.id)) == ([], None)
    assert history.delete(trial.id)
    assert history.restore(trial.id)
    found = history.trial(trial.id)
    assert found is not None
    assert_same_steps(found.completion.steps, trial.completion.steps)


def test_deleted_trials_are_purged_when_opened_again(path: Path) -> None:
    gone, stays = make_trial(), make_trial()
    with History.open(path) as history:
        history.record(gone)
        history.record(stays).result(60)
        history.delete(gone.id)
    with History.open(path) as history:
        assert not history.restore(gone.id)
        assert [summary.id for summary in history.recent()] == [stays.id]
        assert history.trial(stays.id) is not None
        history.delete(stays.id)
        assert history.gc() == 1
    with duckdb.connect(path) as connection:
        for table in ("trials", "steps", "tokenizers"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


def test_nothing_is_kept_twice(path: Path) -> None:
    trial = make_trial()
    with History.open(path) as history:
        for _ in range(3):
            history.record(trial).result(60)
        history.record(make_trial()).result(60)
    with duckdb.connect(path) as connection:
        counted = (
            "SELECT (SELECT count(*) FROM trials), (SELECT count(*) FROM steps), (SELECT count(*) FROM tokenizers)"
        )
        assert connection.execute(counted).fetchone() == (2, 12, 1)


def test_an_unknown_id_is_no_trial(history: History) -> None:
    for id in (uuid7(), "", "junk", "' OR 1=1 --"):
        assert history.trial(id) is None
        assert not history.delete(id)


def test_a_trial_needs_a_uuid_and_a_time_zone() -> None:
    with pytest.raises(ConfigError, match="UUID"):
        make_trial(id="7")
    with pytest.raises(ConfigError, match="UUID"):
        make_trial(parent="7")
    with pytest.raises(ConfigError, match="time zone"):
        make_trial(created_at=datetime(2026, 1, 1))


def test_closing_writes_what_is_queued_and_ends_the_rest(path: Path) -> None:
    history = History.open(path)
    futures = [history.record(make_trial()) for _ in range(5)]
    history.close()
    history.close()
    assert all(future.done() and future.exception() is None for future in futures)
    with pytest.raises(HistoryError, match="closed"):
        history.record(make_trial())
    with pytest.raises(HistoryError, match="closed"):
        history.recent()
    with History.open(path) as again:
        assert len(again.recent()) == 5


def test_eight_threads_read_while_one_writes(history: History) -> None:
    first = make_trial(30, 64)
    history.record(first).result(60)
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            for summary in history.recent(5):
                trial = history.trial(summary.id)
                assert trial is not None
                assert len(trial.completion.steps) == summary.num_generated

    with ThreadPoolExecutor(8) as readers:
        reading = [readers.submit(read) for _ in range(8)]
        writing = [history.record(make_trial(20, 64, seed=seed)) for seed in range(15)]
        for future in writing:
            future.result(60)
        is_over.set()
        for future in reading:
            future.result(60)
    assert len(history.recent(100)) == 16


def test_a_step_takes_less_than_two_kilobytes(path: Path) -> None:
    few = make_steps(256, 256)
    order = np.random.default_rng(1).integers(0, 256, 4000)
    columns = (few.records[order], few.top_ids[order], few.top_logprobs[order], few.top_p_final[order])
    trial = make_trial()
    steps = StepTable.of(VOCABULARY, *columns, is_prompt=False)
    with History.open(path) as history:
        history.record(replace(trial, completion=replace(trial.completion, steps=steps))).result(60)
    assert path.stat().st_size / len(steps) < 2000
    assert steps.records["flags"][0] & INSPECTED


def test_the_file_is_locked_down_and_readable_by_older_versions(history: History) -> None:
    with history.file._connection.cursor() as cursor:
        with pytest.raises(duckdb.Error, match="disabled by configuration"):
            cursor.execute("SELECT * FROM read_text('/etc/hostname')")
        with pytest.raises(duckdb.Error, match="locked"):
            cursor.execute("SET threads = 8")
        with pytest.raises(duckdb.Error, match="disabled by configuration"):
            cursor.execute(f"ATTACH '{history.path.parent}/copy.duckdb' AS copy")
        (tags,) = cursor.execute("SELECT tags FROM duckdb_databases() WHERE database_name = 'history'").fetchone() or ()
        assert tags["storage_version"] == "v1.5.0+"
