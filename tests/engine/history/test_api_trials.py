"""Trials of API calls: stored in groups without losing one, and deleted beyond a limit of their space."""

import signal
import subprocess
import sys
from concurrent.futures import wait
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from engine.errors import ConfigError
from engine.history import History, Inbox, TrialLabel, TrialRecord, api_trials, columns, database_writer, write_inbox
from engine.steps import StepTable
from tests.engine.history.trial_maker import VOCABULARY, make_steps, make_trial, uuid7
from tests.waiting import until

K, NUM_STEPS = 20, 40
EXAMPLES = [make_trial(NUM_STEPS, K, seed=seed) for seed in range(4)]


def call(number: int, **changes: Any) -> TrialRecord:
    """Return a trial of an API call, of which no two have the same figures."""
    example, id = EXAMPLES[number % len(EXAMPLES)], uuid7()
    table = example.completion.steps
    noise = np.random.default_rng(number).random(table.top_logprobs.shape, np.float32)
    steps = StepTable.of(
        VOCABULARY, table.records, table.top_ids, table.top_logprobs - noise, table.top_p_final, is_prompt=False
    )
    completion = replace(example.completion, id=id, steps=steps)
    prompt = f"{number} {np.random.default_rng(number).bytes(500).hex()}"
    new: dict[str, Any] = {"id": id, "created_at": datetime.now(UTC), "prompt": prompt, "completion": completion}
    return replace(example, **new, **{"label": TrialLabel.API, **changes})


def count(history: History, condition: str = "true") -> int:
    with history.file.reading() as cursor:
        ((num,),) = cursor.execute(f"SELECT count(*) FROM trials WHERE {condition}").fetchall()
    return int(num)


def num_bytes(history: History) -> float:
    """Return what the trials of calls without marks take, as the limit counts it."""
    with history.file.reading() as cursor:
        query = f"SELECT coalesce(sum({api_trials._BYTES}), 0) FROM trials WHERE {api_trials._UNMARKED}"
        ((num,),) = cursor.execute(query).fetchall()
    return float(num)


def test_one_that_waits_to_be_stored_is_deleted_with_the_others(history: History) -> None:
    trials = [call(number) for number in range(20)]
    stored = []
    for trial in trials:
        stored.append(history.record(trial))
        assert history.delete(trial.id)
    wait(stored)
    assert count(history, "deleted_at IS NOT NULL") == len(trials)
    assert history.restore(trials[3].id) and history.trial(trials[3].id) is not None


def test_many_are_stored_whole_in_few_transactions(history: History) -> None:
    trials = [call(number) for number in range(300)]
    before = history.file.version
    futures = [history.record(trial) for trial in trials]
    done = futures[-1].result(60)
    assert done is None and not [future for future in futures[:256] if not future.done()]
    assert history.file.version - before <= 20
    for trial in (trials[0], trials[150], trials[-1]):
        read = history.trial(trial.id)
        assert read is not None and read.prompt == trial.prompt
        assert np.array_equal(read.completion.steps.top_logprobs, trial.completion.steps.top_logprobs)
    assert count(history) == 300


@pytest.mark.parametrize("seed", range(4))
def test_trials_of_any_width_and_length_in_one_group_read_as_each_alone(history: History, seed: int) -> None:
    """Prompts with and without candidates, steps that were not sampled, and none at all."""
    random = np.random.default_rng(seed)
    trials = []
    for _ in range(12):
        num_steps, num_prompt = map(int, random.integers(0, 5, 2))
        k, prompt_k = map(int, random.choice([0, 1, 3, K], 2))
        trial = make_trial(num_steps, k, seed=int(random.integers(100)), label=TrialLabel.API)
        scored = make_steps(num_prompt, prompt_k, seed=1, is_prompt=True)
        unsampled = np.full_like(scored.top_p_final, np.nan)
        prompt_steps = StepTable.of(
            VOCABULARY, scored.records, scored.top_ids, scored.top_logprobs, unsampled, is_prompt=True
        )
        trials.append(replace(trial, completion=replace(trial.completion, prompt_steps=prompt_steps)))
    alone = pa.concat_tables(rows for trial in trials for rows in columns.step_rows(trial))
    assert pa.concat_tables(columns.step_rows(*trials)).equals(alone)
    wait([history.record(trial) for trial in trials])
    for trial in trials:
        read = history.trial(trial.id)
        assert read is not None
        for name in ("steps", "prompt_steps"):
            kept, given = getattr(read.completion, name), getattr(trial.completion, name)
            assert len(kept) == len(given)
            for matrix in ("top_ids", "top_logprobs", "top_p_final") if len(given) else ():
                assert np.array_equal(getattr(kept, matrix), getattr(given, matrix), equal_nan=True)


def test_one_that_comes_twice_is_stored_once(history: History) -> None:
    trial = call(0)
    wait([history.record(trial), history.record(trial)])
    history.record(trial, is_urgent=True).result(60)
    history.record(trial).result(60)
    assert count(history) == 1


def test_one_that_cannot_be_stored_fails_alone(history: History) -> None:
    """A trial with only a part of its tokenizer, in the middle of a group."""
    trials = [call(number) for number in range(20)]
    part = replace(VOCABULARY, pieces=VOCABULARY.pieces[:400], kinds=VOCABULARY.kinds[:400]).part([300, 301])
    steps = StepTable(part, K)
    bad = replace(trials[7], completion=replace(trials[7].completion, steps=steps))
    futures = [history.record(bad if number == 7 else trial) for number, trial in enumerate(trials)]
    with pytest.raises(ConfigError):
        futures[7].result(60)
    for number, future in enumerate(futures):
        assert number == 7 or future.result(60) is None
    assert count(history) == 19


def test_one_whose_record_cannot_be_made_fails_alone(history: History) -> None:
    def broken() -> TrialRecord:
        raise ConfigError("no record")

    one, failed, other = history.record(call(1)), history.record_call(broken), history.record_call(lambda: call(2))
    with pytest.raises(ConfigError, match="no record"):
        failed.result(60)
    assert one.result(60) is other.result(60) is None
    assert count(history) == 2


def test_those_that_still_wait_are_stored_at_the_end(path: Path) -> None:
    with History.open(path) as history:
        futures = [history.record(call(number)) for number in range(30)]
    assert all(future.result(0) is None for future in futures)
    with History.open(path) as history:
        assert count(history) == 30


KILLED = """
import sys
from pathlib import Path
from engine.history import History
from tests.engine.history.test_api_trials import call
history = History.open(Path(sys.argv[1]))
for number in range(10_000):
    trial = call(number)
    history.record(trial).add_done_callback(lambda _, id=trial.id: print(id, flush=True))
"""


@pytest.mark.slow
def test_none_that_was_acknowledged_is_lost_in_a_kill(path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as owner:
        assert owner.stdout is not None
        acknowledged = [owner.stdout.readline().strip() for _ in range(400)]
        owner.send_signal(signal.SIGKILL)
        acknowledged += [line.strip() for line in owner.stdout.readlines() if line.endswith("\n")]
    with History.open(path) as history:
        for id in acknowledged:
            read = history.trial(id)
            assert read is not None and len(read.completion.steps) == NUM_STEPS


# the limit

MOST = 2_000_000


def fill(history: History, num: int, start: int = 0) -> list[str]:
    """Store so many trials, and wait until none is to be deleted; return their ids."""
    trials = [call(start + number) for number in range(num)]
    wait([history.record(trial) for trial in trials])
    history._api_trials.shrink()
    until(lambda: num_bytes(history) <= MOST, "more than the limit is kept")
    return [trial.id for trial in trials]


@pytest.mark.slow
def test_the_oldest_calls_go_and_nothing_else(path: Path) -> None:
    """Not what a page has made, not what has a mark or a continuation, however old."""
    with History.open(path, most_api_bytes=MOST) as history:
        ours = [make_trial(NUM_STEPS, K) for _ in range(5)]
        wait([history.record(trial) for trial in ours])
        calls = fill(history, 10)
        history.marks.star("trial", calls[:1], True)
        history.marks.note("trial", calls[1], "why?")
        history.marks.tag("trial", calls[2:3], add=["odd"])
        history.marks.archive("trial", calls[3:4], True)
        history.marks.star("trial", calls[4:5], True)
        history.marks.star("trial", calls[4:5], False)
        continued = make_trial(NUM_STEPS, K, parent=calls[5], label=TrialLabel.CONTINUE)
        history.record(continued).result(60)
        calls += fill(history, 490, 10)
        kept = {*calls[:4], calls[5], continued.id, *(trial.id for trial in ours)}
        assert all(history.trial(id) for id in kept)
        assert not any(history.trial(id) for id in (calls[4], *calls[6:100]))
        left = [id for id in calls[6:] if history.trial(id)]
        assert left == calls[-len(left) :], "not the newest"
        assert num_bytes(history) > MOST * 0.9, "more than needed was deleted"
        with history.file.reading() as cursor:
            for table, column in (("steps", "trial_id"), ("marks", "id")):
                lost = f"SELECT count(*) FROM {table} WHERE {column} NOT IN (SELECT id FROM trials)"
                assert cursor.execute(lost).fetchall() == [(0,)]
        history.marks.star("trial", calls[:1], False)
        fill(history, 1)
        assert history.trial(calls[0]) is None, "the mark that kept it is gone"


@pytest.mark.slow
def test_the_limit_holds_for_the_calls_of_another_process_too(path: Path) -> None:
    folder = path.parent / "inbox"
    with History.open(path, most_api_bytes=MOST) as history:
        for number in range(300):
            write_inbox(folder, call(number))
        assert len(Inbox(folder).take(history)) == 300
        until(lambda: num_bytes(history) <= MOST * (1 + 1 / api_trials.LOOKS), "more than the limit is kept")
        assert count(history) > 10


def test_a_lower_limit_holds_from_the_next_start_and_none_keeps_all(path: Path) -> None:
    with History.open(path) as history:
        wait([history.record(call(number)) for number in range(600)])
        assert count(history) == 600
    with History.open(path, most_api_bytes=MOST) as history:
        until(lambda: num_bytes(history) <= MOST, "more than the limit is kept")
        assert count(history) > 10
        history.record(make_trial()).result(60)
    with History.open(path, most_api_bytes=0) as history:
        until(lambda: count(history) == 1, "some are kept")


@pytest.mark.slow
@pytest.mark.parametrize("num_kept", [0, 200])
def test_the_file_does_not_grow_beyond_the_limit_and_what_its_log_takes(
    path: Path, monkeypatch: pytest.MonkeyPatch, num_kept: int
) -> None:
    """Ten times the limit comes; between the calls others are stored that stay, or none."""
    log_bytes = 1 << 20
    monkeypatch.setattr(database_writer, "LOG_BYTES", log_bytes)
    with History.open(path, most_api_bytes=MOST) as history:
        history.file._checkpoint_at = log_bytes
        ours, most, level = 0, 0, 0
        for start in range(0, 2000, 50):
            futures = [history.record(call(number)) for number in range(start, start + 50)]
            if ours < num_kept:
                futures += [history.record(replace(call(number), label="")) for number in range(10)]
                ours += 10
            wait(futures)
            most = max(most, size(path))
            level = max(level, size(path)) if 800 <= start <= 1000 else level
        assert count(history, "label = ''") == ours
        until(lambda: num_bytes(history) <= MOST * (1 + 1 / api_trials.LOOKS), "more than the limit is kept")
        # a checkpoint may write all that is kept anew before the old place is free
        assert most < 2 * (1.3 * MOST + ours * 13_000) + 4 * log_bytes
        assert size(path) < 1.3 * level + 2 * log_bytes, "it grows"


def size(path: Path) -> int:
    log = Path(f"{path}.wal")
    return path.stat().st_size + (log.stat().st_size if log.exists() else 0)
