"""Misuse by callers: the error is raised where they are, nobody else is disturbed, nothing waits forever."""

import copy
import gc
import logging
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from engine import ConfigError, EngineError, Job, Pool, Sampling, WorkerDied
from engine.pool import messages as m
from tests.conftest import ENDLESS
from tests.processes import children_with
from tests.waiting import until

PROMPT = "The old woman said to the wolf"
Asking = Callable[[Pool, Job], object]


def workers_of_this_process() -> set[psutil.Process]:
    return set(children_with("engine.pool.worker"))


def test_numbers_of_numpy_reach_the_worker(pool: Pool) -> None:
    sampling = Sampling(temperature=np.float64(0.7), logit_bias={np.int64(2): -np.inf})  # type: ignore[arg-type]
    assert len(pool.submit(np.array([1, 300]), sampling, max_tokens=2).result(60).steps) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"temperature": 1}, 5, "greedy"])
def test_what_is_no_sampling_is_refused_at_submit(pool: Pool, wrong: object) -> None:
    with pytest.raises(ConfigError, match="must be a Sampling"):
        pool.submit(PROMPT, wrong)  # type: ignore[arg-type]


def test_text_that_is_none_is_refused(pool: Pool) -> None:
    with pytest.raises(ConfigError, match="text = 5: must be text"):
        pool.tokenize(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="content = .*: must be text"):
        pool.render_chat([{"role": "user", "content": ["a"]}])  # type: ignore[dict-item]


@pytest.mark.parametrize("wrong", [None, 5, "a\0b"])
def test_what_is_no_path_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="must be the path of a GGUF file|is not a valid path"):
        Pool(wrong)  # type: ignore[arg-type]


def test_an_unknown_parameter_of_a_pool_is_refused_as_one_of_its_spec(story_model: Path) -> None:
    with pytest.raises(ConfigError, match="Pool has no parameter 'thread'; did you mean threads?"):
        Pool(story_model, thread=3)  # type: ignore[call-arg]


def test_steps_are_found_and_completions_copied(pool: Pool) -> None:
    done = pool.submit(PROMPT, ENDLESS, max_tokens=6, top_k=3, prompt_logprobs=True).result(60)
    assert done.steps.index(done.steps[4]) == 4
    assert done.steps[2] in done.steps
    assert done.steps[2] not in done.prompt_steps
    again = pickle.loads(pickle.dumps(copy.deepcopy(done)))
    assert (again.ids, again.text, again.steps.text) == (done.ids, done.text, done.steps.text)
    assert [step.top for step in again.steps] == [step.top for step in done.steps]
    assert again.prompt_steps.text == done.prompt_steps.text
    assert "StepTable(6 steps, k=3)" in repr(done)


def test_a_wait_may_be_longer_than_any_clock(pool: Pool) -> None:
    assert pool.submit(PROMPT, ENDLESS, max_tokens=2).result(float("inf")).steps


def test_a_listener_that_fails_is_logged_and_nothing_else(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    job = pool.submit(PROMPT, ENDLESS, max_tokens=20)
    job.add_listener(lambda: 1 / 0)
    with caplog.at_level(logging.ERROR, "engine.jobs"):
        assert len(job.result(60).steps) == 20
        job.add_done_callback(lambda _job: 1 / 0)
    assert "ZeroDivisionError" in caplog.text
    assert pool.submit(PROMPT, ENDLESS, max_tokens=1).result(60).steps


@pytest.mark.parametrize(
    "ask",
    [
        lambda pool, _job: pool.tokenize("b"),
        lambda pool, _job: pool.measure(),
        lambda pool, _job: pool.submit(PROMPT, max_tokens=1).result(),
        lambda pool, _job: list(pool.submit(PROMPT, max_tokens=1)),
    ],
)
def test_a_callback_that_waits_for_its_pool_is_refused(pool: Pool, ask: Asking) -> None:
    errors: list[str] = []
    over = threading.Event()

    def callback(job: Job) -> None:
        try:
            ask(pool, job)
        except EngineError as error:
            errors.append(str(error))
        over.set()

    pool.submit(PROMPT, ENDLESS, max_tokens=8).add_done_callback(callback)
    assert over.wait(60)
    assert len(errors) == 1
    assert "must not wait for the engine" in errors[0]
    assert pool.submit(PROMPT, ENDLESS, max_tokens=1).result(60).steps


def test_a_job_keeps_its_pool_until_it_is_over(story_model: Path) -> None:
    before = workers_of_this_process()
    job = Pool(story_model, threads=1, parallel=1).submit(PROMPT, ENDLESS, max_tokens=50)
    gc.collect()
    assert len(job.result(60).steps) == 50
    gc.collect()
    until(lambda: workers_of_this_process() <= before)
    assert len(job.steps) == 50


def test_a_message_that_cannot_be_written_ends_the_worker_and_its_jobs(
    story_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Pool(story_model, threads=1, parallel=2) as pool:
        job = pool.submit(PROMPT, ENDLESS, max_tokens=500)
        next(iter(job))
        pool._group.alive[0].send(m.Cancel(object()))  # type: ignore[arg-type]
        with pytest.raises(WorkerDied):
            job.result(60)
        assert pool.submit(PROMPT, ENDLESS, max_tokens=1).result(60).steps
    assert "could not be written" in caplog.text


@pytest.mark.parametrize("kind", [KeyError, SystemExit])
def test_what_on_progress_raises_is_what_the_constructor_raises(story_model: Path, kind: type[BaseException]) -> None:
    def progress(_fraction: float) -> None:
        raise kind("no such bar")

    before = workers_of_this_process()
    with pytest.raises(kind, match="no such bar"):
        Pool(story_model, threads=1, on_progress=progress)
    until(lambda: workers_of_this_process() <= before)


INTERRUPTED = """
import signal, sys, time
import psutil
from engine import Pool
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    Pool(sys.argv[1], threads=1, on_opening=lambda _abort: print("opening", flush=True))
except KeyboardInterrupt as error:
    kept = error
    end = time.monotonic() + 60
    while psutil.Process().children() and time.monotonic() < end:
        time.sleep(0.05)
    print("left", len(psutil.Process().children()), flush=True)
"""


def test_an_interrupt_while_it_loads_leaves_no_worker(story_model: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(story_model)], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "opening\n"
        time.sleep(0.05)
        program.send_signal(signal.SIGINT)
        assert program.communicate(timeout=60)[0] == "left 0\n"


FORKED = """
import asyncio, os, sys
from engine import Pool, PoolClosed, Sampling
from engine.models.library import embedded_model

async def wait(job):
    return await job

with Pool(embedded_model(), threads=1, parallel=1, n_ctx=512) as pool:
    job = pool.submit("Once", Sampling(logit_bias=((2, float("-inf")),)), max_tokens=300)
    next(iter(job))
    child = os.fork()
    if not child:
        for ask in (lambda: pool.submit("Twice"), lambda: pool.tokenize("Twice"), lambda: pool.measure(5),
                    job.result, lambda: list(job), job.exception, lambda: asyncio.run(wait(job))):
            try:
                ask()
                os._exit(1)
            except PoolClosed as error:
                assert "which was forked" in str(error)
        pool.close()
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(job.result(60).ids) == 300
"""


def test_a_fork_of_the_process_cannot_use_the_pool_and_ends_nothing_of_it() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
