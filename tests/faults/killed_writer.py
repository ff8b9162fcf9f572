"""A process that writes the history is killed (-9) at random moments; what it committed is there each time, and whole.

python -m tests.faults.killed_writer FILE SEED     the process that is killed: writes until then
"""

import os
import random
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from engine.errors import HistoryError
from engine.history import History, database_writer
from engine.samples import SAMPLE
from tests.engine.history.run_maker import make_run, make_samples
from tests.engine.history.trial_maker import make_trial

ROOT = Path(__file__).parents[2]
LONGEST_S = 1.0
NUM_STEPS = 40
NUM_SAMPLES = 30_000
LARGEST_BATCH = 16
MOST_WAITING = 32
LOG_BYTES = 1 << 18
"""So small that checkpoints happen all the time, and are killed too."""


class Crash(NamedTuple):
    """One kill: rows that were committed and are there; wrong: what is not as it should be, empty where all is."""

    num_rows: int
    wrong: str


def crash_once(path: Path, *, seed: int) -> Crash:
    """Start a writer, kill it after up to LONGEST_S seconds of writing, open its file and look."""
    said = path.with_name(f"said-{seed}")
    words = [sys.executable, "-m", "tests.faults.killed_writer", str(path), str(seed)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(random.Random(seed).uniform(0, LONGEST_S))
        writer.kill()
    run_id, *lines = said.read_text().splitlines() or [""]
    try:
        with History.open(path) as history:
            return _look(history, run_id, [line.split() for line in lines if line.endswith(".")], seed)
    except HistoryError as error:
        return Crash(0, str(error))


def _look(history: History, run_id: str, committed: list[list[str]], seed: int) -> Crash:
    """Compare what is there with what the writer said was committed."""
    run = history.runs.run(run_id)
    if run is None:
        return Crash(0, "the run is not there")
    num_committed = max((int(what[1]) for what in committed if what[0] == "samples"), default=0)
    expected = make_samples(NUM_SAMPLES, seed=seed)[: len(run.samples)]
    trials = {what[1]: history.trial(what[1]) for what in committed if what[0] == "trial"}
    kept = [history.trial(summary.id) for summary in history.recent(10_000)]
    orphans = history.console.run(
        "SELECT (SELECT count(*) FROM steps ANTI JOIN trials ON trials.id = trial_id) + "
        "(SELECT count(*) FROM samples ANTI JOIN runs ON runs.id = run_id) AS num_orphans"
    ).table["num_orphans"][0]
    faults = {
        "a committed sample is lost": len(run.samples) < num_committed,
        "a batch of samples is halved": len(run.samples) not in {0, *accumulate(_batches(seed))},
        "a sample is not what was written": any(
            run.samples[name].tobytes() != expected[name].tobytes() for name in SAMPLE.names or ()
        ),
        "a committed trial is lost": None in trials.values(),
        "a trial is halved": any(trial is None or len(trial.completion.steps) != NUM_STEPS for trial in kept),
        "rows belong to nothing": orphans.as_py() > 0,
    }
    num_rows = num_committed + NUM_STEPS * len(trials)
    return Crash(num_rows, ", ".join(fault for fault, is_so in faults.items() if is_so))


def _batches(seed: int) -> list[int]:
    """How many samples are written at once, one after the other."""
    sizes = random.Random(seed)
    return [sizes.randint(1, LARGEST_BATCH) for _ in range(NUM_SAMPLES // LARGEST_BATCH)]


def write(path: Path, seed: int) -> None:
    """Write samples and trials until killed; what is committed is said in a file beside it, a line each."""
    database_writer.LOG_BYTES = LOG_BYTES
    history = History.open(path)
    saying = os.open(path.with_name(f"said-{seed}"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def say(words: str) -> None:
        os.write(saying, f"{words}\n".encode())

    run = make_run(0, status="running")
    history.runs.begin(run)
    say(run.id)
    print("ready", flush=True)
    samples, trial = make_samples(NUM_SAMPLES, seed=seed), make_trial(NUM_STEPS, 32)
    waiting: deque[Future[None]] = deque()
    start = 0
    for number, size in enumerate(_batches(seed)):
        end = start + size
        waiting.append(history.runs.add(run.id, samples[start:end]))
        waiting[-1].add_done_callback(lambda _, end=end: say(f"samples {end} ."))  # type: ignore[misc]
        if number % 8 == 0:
            another = replace(make_trial(0), completion=trial.completion)
            waiting.append(history.record(another))
            waiting[-1].add_done_callback(lambda _, id=another.id: say(f"trial {id} ."))  # type: ignore[misc]
        start = end
        while len(waiting) > MOST_WAITING:
            waiting.popleft().result()


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
