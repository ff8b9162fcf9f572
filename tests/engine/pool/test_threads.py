"""Threads of real workers: fewer beside a busy process, all again after it, saved with each job, asleep in between."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine import Completion, Pool
from engine.machine.cores import allowed_cores

PROMPT = list(range(300, 500))
DEADLINE_S = 120.0

needs_two_cores = pytest.mark.skipif(len(allowed_cores()) < 2, reason="with one core there is nothing to decide")


@pytest.fixture
def _on_two_cores() -> Iterator[None]:
    """Restrict this process and those that it starts to two cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, allowed_cores()[:2])
    yield
    os.sched_setaffinity(0, before)


@contextmanager
def busy(core: int, num: int) -> Iterator[None]:
    """Run `num` processes that keep one core busy."""
    loop = f"import os\nos.sched_setaffinity(0, [{core}])\nwhile True: pass"
    with ExitStack() as running:
        for _ in range(num):
            process = subprocess.Popen([sys.executable, "-c", loop])
            running.callback(process.wait)
            running.callback(process.kill)
        yield


def ask(pool: Pool, number: int, max_tokens: int = 32) -> Completion:
    """Complete a prompt that shares no beginning with that of another number."""
    return pool.submit([700 + number % 3000, *PROMPT], max_tokens=max_tokens).result(DEADLINE_S)


def until(holds: Callable[[], bool], pool: Pool) -> None:
    """Let the pool compute until `holds` returns True."""
    ends, number = time.monotonic() + DEADLINE_S, 0
    while not holds():
        ask(pool, number)
        number += 1
        assert time.monotonic() < ends, f"after {number} prompts: {pool.workers()}"


@needs_two_cores
@pytest.mark.alone
@pytest.mark.usefixtures("_on_two_cores")
def test_fewer_threads_beside_a_busy_process_and_all_again_when_it_has_ended(story_model: Path) -> None:
    with Pool(story_model, parallel=1, n_ctx=512) as pool:
        until(lambda: pool.workers()[0].threads_batch == 2, pool)
        with busy(allowed_cores()[0], 4):
            until(lambda: (pool.workers()[0].threads, pool.workers()[0].threads_batch) == (1, 1), pool)
        until(lambda: pool.workers()[0].threads_batch == 2, pool)


@needs_two_cores
@pytest.mark.parametrize("given", [{"threads": 2}, {"threads": 1, "threads_batch": 2}])
def test_a_number_that_is_given_is_the_one_in_use(story_model: Path, given: dict[str, Any]) -> None:
    expected = given["threads"], given.get("threads_batch", given["threads"])
    with Pool(story_model, parallel=1, **given) as pool:
        timings = ask(pool, 0, max_tokens=4).timings
        (worker,) = pool.workers()
    assert (timings.threads, timings.threads_batch) == expected
    assert (worker.threads, worker.threads_batch) == expected


@pytest.mark.slow
@needs_two_cores
@pytest.mark.usefixtures("_on_two_cores")
def test_a_job_that_must_come_out_the_same_has_the_number_the_pool_began_with(story_model: Path) -> None:
    with Pool(story_model, parallel=1) as pool:
        for number in range(20):
            ask(pool, number)
        timings = pool.submit(PROMPT, max_tokens=8, reuse_prefix=False).result(DEADLINE_S).timings
    assert (timings.threads, timings.threads_batch) == (2, 2)


def test_a_job_without_steps_has_no_threads_of_them(story_model: Path) -> None:
    with Pool(story_model, threads=1, parallel=1) as pool:
        timings = ask(pool, 0, max_tokens=0).timings
    assert (timings.threads, timings.threads_batch) == (None, 1)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [None, 2])
def test_waiting_between_jobs_costs_no_processor_time(story_model: Path, threads: int | None) -> None:
    """Threads that spin while they wait for each other sleep soon after the last decode."""
    with Pool(story_model, threads=threads, parallel=1) as pool:
        ask(pool, 0)
        worker = psutil.Process(pool.workers()[0].pid)
        before = sum(worker.cpu_times()[:2])
        time.sleep(2.0)
        assert sum(worker.cpu_times()[:2]) - before < 0.5
