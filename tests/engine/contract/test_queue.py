"""The contract of engine.protocol.Engine: jobs that wait, are cancelled, or open when the engine closes."""

from collections.abc import Callable

import pytest

from engine.errors import JobTimeout, PoolClosed, QueueFull
from engine.protocol import Engine
from engine.settings import PREFIX
from engine.specs import PoolSpec, Sampling
from tests.engine.contract.conftest import SPEC, Open


def test_a_cancelled_job_gives_the_part_it_has(engine: Engine) -> None:
    with engine.held():
        job = engine.submit("Once", max_tokens=200)
        assert job.cancel()
    done = job.result(60)
    assert done.finish_reason == "cancelled"
    assert len(done.steps) < 200
    assert not job.cancel()


def test_a_job_that_waits_can_be_timed_out_on_and_goes_on(engine: Engine) -> None:
    with engine.held():
        job = engine.submit("Once", max_tokens=2)
        with pytest.raises(JobTimeout):
            job.result(0.01)
    assert len(job.result(60).steps) >= 1


def test_a_full_queue_refuses_a_job(open_one: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "MAX_QUEUE", "3")
    with open_one(PoolSpec(parallel=1, n_ctx=256, threads=1)) as engine:
        engine.pause()
        jobs = [engine.submit("Once", max_tokens=1) for _ in range(3)]
        with pytest.raises(QueueFull):
            engine.submit("Once", max_tokens=1)
        assert engine.num_open == 3
        assert [job.queue_position for job in jobs] == [0, 1, 2]
        engine.resume()
        assert all(job.result(60) for job in jobs)


def test_paused_jobs_start_once_it_is_resumed(engine: Engine) -> None:
    engine.pause()
    job = engine.submit("Once", max_tokens=1)
    with pytest.raises(JobTimeout):
        job.result(0.05)
    assert not job.is_started
    engine.resume()
    assert job.result(60).steps


def test_it_says_why_it_ended(open_one: Open) -> None:
    engine = open_one(SPEC)
    assert engine.ending is None
    engine.close("the first reason")
    engine.close("another")
    assert str(engine.ending) == "the first reason"


def test_closing_ends_open_jobs_with_the_reason_and_takes_no_more(open_one: Open) -> None:
    engine = open_one(SPEC)
    with engine.held():
        job = engine.submit("Once", max_tokens=100)
        engine.close("the test is over")
    with pytest.raises(PoolClosed, match="the test is over"):
        job.result(60)
    engine.close()
    asks: tuple[Callable[[], object], ...] = (
        lambda: engine.submit("Once"),
        lambda: engine.tokenize("Once"),
        lambda: list(engine.map(["Once"])),
        lambda: engine.check_sampling(Sampling(grammar='root ::= "not seen before"')),
    )
    for ask in asks:
        with pytest.raises(PoolClosed):
            ask()
