"""The contract of engine.protocol.Engine: ways to wait for a job, and what is called when it changes."""

import asyncio
import threading
from collections.abc import Callable
from concurrent import futures

import pytest

from engine.errors import ConfigError, EngineError, JobTimeout
from engine.jobs import Job
from engine.protocol import Engine
from engine.specs import Sampling
from tests.engine.contract.conftest import never_ending, unusable
from tests.waiting import in_loop


def test_a_job_can_be_awaited_and_iterated_asynchronously(engine: Engine) -> None:
    async def ask() -> None:
        job = engine.submit("Once upon", Sampling(seed=1), max_tokens=12)
        seen = [step.id async for step in job]
        done = await job
        assert seen == list(done.ids) == [step.id async for step in job]
        several = [engine.submit("Once", max_tokens=3) for _ in range(4)]
        assert [one.id for one in await asyncio.gather(*several)] == [job.id for job in several]
        with pytest.raises(EngineError):
            await engine.submit(unusable(engine), max_tokens=1)

    in_loop(ask())


def test_cancelling_the_task_that_awaits_a_job_cancels_it(engine: Engine) -> None:
    with engine.held():
        job = engine.submit("Once", max_tokens=200)
        with pytest.raises(TimeoutError):
            in_loop(asyncio.wait_for(wait_for(job), 0.05))
    assert job.result(60).finish_reason == "cancelled"


def test_a_shielded_job_outlives_its_task(engine: Engine) -> None:
    async def ask() -> object:
        with engine.held():
            job = engine.submit("Once", Sampling(seed=1), max_tokens=20)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(job), 0.05)
        return (await job).finish_reason

    assert in_loop(ask()) != "cancelled"


def test_a_job_goes_on_where_the_task_that_iterates_it_is_cancelled(engine: Engine) -> None:
    async def ask(job: Job) -> None:
        task = asyncio.create_task(_steps_of(job))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with engine.held():
        job = engine.submit("Once", Sampling(seed=1), max_tokens=20)
        in_loop(ask(job))
    assert job.result(60).finish_reason != "cancelled"
    assert not job._listeners


def test_asyncio_wait_is_refused_with_what_it_takes(engine: Engine) -> None:
    async def ask() -> None:
        jobs = [engine.submit("Once", max_tokens=2) for _ in range(3)]
        with pytest.raises(ConfigError, match=r"asyncio\.ensure_future\(job\)"):
            await asyncio.wait(jobs)  # type: ignore[type-var]
        done, pending = await asyncio.wait([asyncio.ensure_future(job) for job in jobs])
        assert (len(done), pending) == (3, set())
        assert {(await one).id for one in asyncio.as_completed(jobs)} == {job.id for job in jobs}

    in_loop(ask())


def test_a_job_shows_its_state(engine: Engine) -> None:
    with engine.held():
        job = engine.submit("Once", Sampling(seed=1), max_tokens=1)
        assert repr(job) in {f"<Job {job.id}: {state}, 0 tokens>" for state in ("waiting", "running")}
    reason = job.result(60).finish_reason
    assert repr(job) == f"<Job {job.id}: {reason}, 1 token>"
    failed = engine.submit(unusable(engine), max_tokens=1)
    error = failed.exception(60)
    assert repr(failed) == f"<Job {failed.id}: {type(error).__name__}>"


async def wait_for(job: Job) -> object:
    return await job


def test_a_loop_that_ended_early_leaves_the_job_alone(engine: Engine) -> None:
    async def read_one(job: Job) -> int:
        async for step in job:
            return step.id
        raise AssertionError

    job = engine.submit("Once", Sampling(seed=1), max_tokens=20)
    first = in_loop(read_one(job))
    assert job.result(60).ids[0] == first


def test_a_job_works_where_a_concurrent_future_does(engine: Engine) -> None:
    jobs = [engine.submit("Once", max_tokens=number) for number in (3, 1, 2)]
    assert set(futures.as_completed(jobs, timeout=60)) == set(jobs)
    assert futures.wait(jobs, timeout=60).done == set(jobs)
    failed = engine.submit(unusable(engine), max_tokens=1)
    assert futures.wait([failed], timeout=60, return_when=futures.FIRST_EXCEPTION).done == {failed}
    assert isinstance(failed.exception(0), EngineError)
    assert not any(job.running() or job.cancelled() for job in (*jobs, failed))


def test_a_callback_is_called_once_wherever_it_is_added(engine: Engine) -> None:
    called = list[str]()
    ended = threading.Event()
    job = engine.submit("Once", max_tokens=3)
    job.add_done_callback(lambda one: called.append(one.id))
    job.add_done_callback(lambda _one: ended.set())
    job.result(60)
    assert ended.wait(60)
    job.add_done_callback(lambda one: called.append(one.id))
    assert called == [job.id, job.id]


class Unheard(BaseException):
    """An exception that `except Exception` does not catch."""


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, Unheard, ValueError])
def test_nothing_that_a_callback_raises_stops_later_answers(engine: Engine, kind: type[BaseException]) -> None:
    def fail(*_: object) -> None:
        raise kind("by a callback")

    with engine.held():
        job = engine.submit("Once", max_tokens=3)
        job.add_done_callback(fail)
        job.add_listener(fail)
    assert len(job.result(60).steps) >= 1
    assert len(engine.submit("Once", max_tokens=3).result(60).steps) >= 1


async def _steps_of(job: Job) -> list[object]:
    return [step async for step in job]


async def _completion_of(job: Job) -> object:
    return await job


WAYS_TO_WAIT: dict[str, Callable[[Job], object]] = {
    "result": lambda job: job.result(1),
    "for": list,
    "await": lambda job: asyncio.run(_completion_of(job)),
    "async for": lambda job: asyncio.run(_steps_of(job)),
}


@pytest.mark.parametrize("way", WAYS_TO_WAIT)
def test_a_callback_may_not_wait_for_the_engine(engine: Engine, way: str) -> None:
    errors = list[EngineError]()
    ended = threading.Event()
    with engine.held():
        job = engine.submit("Once", max_tokens=1)  # before the other: an engine may have one sequence
        other = engine.submit("Once", never_ending(engine), max_tokens=200)

        def wait(_job: object) -> None:
            try:
                WAYS_TO_WAIT[way](other)
            except EngineError as error:
                errors.append(error)
            ended.set()

        job.add_done_callback(wait)
    assert ended.wait(60)
    assert errors and not isinstance(errors[0], JobTimeout)
