"""Samples appended to the history while another thread reads it as pages do: how fast, how slow a read, what fails."""

import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from engine.history import History
from tests.engine.history.run_maker import make_run, make_samples
from tests.speed.common import Row, at_least, at_most

ROUNDS = 600
SHAPE = ""
PER_S = 10_500
"""Somewhat more than the goal, so that a pause can be made good."""

GOAL_PER_S = 10_000
AT_ONCE = 500
SAMPLES_OF_RUN = 10_000
MOST_WAITING = 20
READ_EVERY_S = 0.2


class Appended(NamedTuple):
    """What came of it: samples kept, seconds it took, reads with the slowest (seconds), and what failed."""

    num_samples: int
    seconds: float
    num_reads: int
    slowest_read_s: float
    errors: list[str]

    @property
    def per_s(self) -> float:
        """Samples kept a second."""
        return self.num_samples / self.seconds


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Here a round is a second; `shape` means nothing."""
    with tempfile.TemporaryDirectory() as folder:
        found = append(Path(folder, "history.duckdb"), num_rounds)
    reads = f"{found.num_reads:,} reads, the slowest {found.slowest_read_s:.2f} s"
    return [
        at_least("samples appended a second while a page reads", found.per_s, GOAL_PER_S, reads, "1/s"),
        at_most("errors meanwhile", len(found.errors), 0, "; ".join(found.errors[:3]), ""),
    ]


def append(path: Path, seconds: float) -> Appended:
    """Append PER_S samples a second for so long, while a thread reads lists, runs and SQL."""
    errors: list[str] = []
    reads: list[float] = []
    samples = make_samples(SAMPLES_OF_RUN)
    done = threading.Event()
    with History.open(path) as history:
        run_ids: list[str] = []

        def read() -> None:
            while not done.wait(READ_EVERY_S):
                for look in _looks(history, run_ids[-1]):
                    began = time.monotonic()
                    try:
                        look()
                    except Exception as error:
                        errors.append(str(error))
                    reads.append(time.monotonic() - began)

        run_ids.append(_begin(history))
        reader = threading.Thread(target=read)
        reader.start()
        waiting: deque[Future[None]] = deque()
        num_samples, began = 0, time.monotonic()
        while (spent := time.monotonic() - began) < seconds:
            if num_samples >= PER_S * spent:
                time.sleep(AT_ONCE / PER_S / 2)
                continue
            start = num_samples % SAMPLES_OF_RUN
            if start == 0 and num_samples:
                run_ids.append(_begin(history))
                print(f"  {spent:.0f} s of {seconds:.0f}", end="\r", file=sys.stderr, flush=True)
            waiting.append(history.runs.add(run_ids[-1], samples[start : start + AT_ONCE]))
            num_samples += AT_ONCE
            if len(waiting) > MOST_WAITING:
                waiting.popleft().result()
        for future in waiting:
            future.result()
        spent = time.monotonic() - began
        done.set()
        reader.join()
        num_kept = sum(run.num_samples for run in history.runs.recent(len(run_ids)))
    if num_kept != num_samples:
        errors.append(f"{num_samples:,} samples were appended, {num_kept:,} are there")
    return Appended(num_kept, spent, len(reads), max(reads, default=0.0), errors)


def _begin(history: History) -> str:
    run = make_run(0)
    history.runs.begin(run)
    return run.id


def _looks(history: History, run_id: str) -> tuple[Callable[[], object], ...]:
    """What pages ask: the lists, the run that is measured, a query."""
    return (
        lambda: history.runs.recent(),
        lambda: history.find.runs(limit=50),
        lambda: history.find.cells(limit=50),
        lambda: history.runs.run(run_id),
        lambda: history.console.run("SELECT flag, count(*), median(tokens_per_s) FROM samples GROUP BY flag"),
    )
