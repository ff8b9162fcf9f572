"""Job without a model: it ends once, calls every callback once, and releases its listeners."""

import asyncio
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.arrivals import MOST_AT_ONCE, arrivals
from engine.errors import ConfigError, EngineError, PoolClosed, WorkerDied
from engine.ids import new_id
from engine.jobs import Job
from tests.engine.pool.made import job_of, rows
from tests.engine.pool.schedule import Race, at_every_line


def _end(job: Job, reason: str = "length") -> None:
    job.on_ended(reason, 0, prefill_s=0.0, decode_s=0.0)


Operation = Callable[[Job], object]
ENDS: dict[str, Operation] = {
    "completed": lambda job: _end(job),
    "failed by the worker": lambda job: job.fail(ConfigError("wrong")),
    "failed by the pool": lambda job: job.fail(PoolClosed("closed")),
    "cancelled": lambda job: job.on_cancelled(),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_callback_added_while_the_job_ends_is_called_once_wherever_that_is(end: str) -> None:
    def race() -> Race:
        job, called = job_of(), list[str]()

        def check() -> None:
            assert sorted(called) == ["before", "meanwhile"]

        job.add_done_callback(lambda _job: called.append("before"))
        return Race(
            lambda: ENDS[end](job), lambda: job.add_done_callback(lambda _job: called.append("meanwhile")), check
        )

    at_every_line(race)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("other", ENDS)
def test_of_two_ends_at_once_one_counts(end: str, other: str) -> None:
    def race() -> Race:
        job, outcomes = job_of(), list[tuple[object, object]]()

        def check() -> None:
            assert outcomes == [(job._completion, job._error)], "what a callback saw is what stays"

        job.add_done_callback(lambda over: outcomes.append((over._completion, over._error)))
        return Race(lambda: ENDS[end](job), lambda: ENDS[other](job), check)

    at_every_line(race)


@pytest.mark.parametrize("end", ENDS)
def test_a_reader_is_woken_by_every_end_wherever_it_begins_to_wait(end: str) -> None:
    def race() -> Race:
        job = job_of()
        readers = [threading.Thread(target=wait, args=(job,), daemon=True) for wait in (Job.exception, _exhaust)]

        def read() -> None:
            for reader in readers:
                reader.start()

        def check() -> None:
            for reader in readers:
                reader.join(60)
                assert not reader.is_alive()

        return Race(lambda: ENDS[end](job), read, check)

    at_every_line(race)


def _exhaust(job: Job) -> None:
    """Read the job to its end."""
    try:
        list(job)
    except EngineError:
        assert job.exception() is not None


@pytest.mark.parametrize("is_started", [False, True])
def test_the_timings_of_a_job_that_failed_stay_as_they_were(is_started: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of()
    if is_started:
        job.on_started([1], num_cached=0, seed=1, queue_s=0.0, load_s=0.0)
    job.fail(ConfigError("the prompt is too long"))
    before, now = job.timings, time.monotonic()
    monkeypatch.setattr("engine.jobs.time.monotonic", lambda: now + 60)
    assert job.timings == before


def test_an_end_for_a_reason_nobody_knows_is_an_error() -> None:
    job = job_of()
    _end(job, "tired")
    assert "tired" in str(job.exception(0))


class JobMachine(RuleBasedStateMachine):
    """Operations of a pool and a caller on one job, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.job = job_of([1, 2, 3])
        self.ids: list[int] = []
        self.end: object = None
        self.num_done: dict[int, int] = {}
        self.num_notified: dict[int, int] = {}
        self.removers: dict[int, Callable[[], None]] = {}

    @precondition(lambda self: not self.ids)
    @rule()
    def starts(self) -> None:
        if self.end is None:
            self.job.on_started([1, 2, 3], num_cached=0, seed=1, queue_s=0.0, load_s=0.0)

    @precondition(lambda self: self.job.is_started and self.end is None)
    @rule(ids=st.lists(st.integers(0, 63), min_size=1, max_size=90))
    def decodes(self, ids: list[int]) -> None:
        before = dict(self.num_notified)
        self.job.on_steps(rows(ids))
        self.ids += ids
        assert all(self.num_notified[key] == before[key] + (key in self.removers) for key in before)

    @rule(name=st.sampled_from(sorted(ENDS)))
    def ends(self, name: str) -> None:
        ENDS[name](self.job)
        if self.end is None:
            self.end = self.job._completion or self.job._error

    @rule()
    def loses_its_worker(self) -> None:
        self.job.fail(WorkerDied("killed"))
        self.end = self.end or self.job._error

    @rule()
    def somebody_waits_for_the_end(self) -> None:
        key = len(self.num_done)
        self.num_done[key] = 0

        def called(job: Job) -> None:
            assert job.done() and job is self.job
            self.num_done[key] += 1

        self.job.add_done_callback(called)

    @rule()
    def somebody_listens(self) -> None:
        key = len(self.num_notified)
        self.num_notified[key] = 0

        def notified() -> None:
            self.num_notified[key] += 1

        self.removers[key] = self.job.add_listener(notified)

    @precondition(lambda self: self.removers)
    @rule(data=st.data())
    def somebody_listens_no_more(self, data: st.DataObject) -> None:
        self.removers.pop(data.draw(st.sampled_from(sorted(self.removers))))()

    @rule()
    def somebody_reads(self) -> None:
        assert self.job.timings.num_generated == len(self.ids)
        if self.end is not None:
            assert len(self.job.steps) == len(self.ids)
            assert self.job.cancel() is False

    @invariant()
    def it_ends_once_and_says_so(self) -> None:
        assert self.job.done() == (self.end is not None)
        assert (self.job._completion or self.job._error) is self.end
        assert set(self.num_done.values()) <= {int(self.end is not None)}
        assert self.job.steps.ids == self.ids
        if self.end is not None:
            assert not self.job._listeners


TestJob = JobMachine.TestCase
TestJob.settings = settings(deadline=None)


@pytest.mark.parametrize("seconds", [-(10**12), -1, 0, 1, 10**9, 1 << 40])
def test_an_id_is_a_uuid_whatever_the_clock_says(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    monkeypatch.setattr("time.time_ns", lambda: seconds * 1_000_000_000)
    first, second = uuid.UUID(new_id()), uuid.UUID(new_id())
    assert first.version == second.version == 7 and first != second


def test_an_ended_job_leaves_the_loop_to_others_while_its_steps_are_read() -> None:
    job, turns = job_of(), list[int]()
    job.on_started([1], num_cached=0, seed=1, queue_s=0.0, load_s=0.0)
    job.on_steps(rows([1] * 1000))
    _end(job)

    async def read() -> None:
        async def other() -> None:
            while True:
                turns.append(num)
                await asyncio.sleep(0)

        num = 0
        beside = asyncio.create_task(other())
        async for _ in job:
            num += 1
        beside.cancel()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, read()).result(60)
    assert max(np.diff(turns)) <= MOST_AT_ONCE


@given(st.lists(st.integers(1, 3 * MOST_AT_ONCE), max_size=5))
def test_all_steps_arrive_once_in_order_and_few_at_once(sizes: list[int]) -> None:
    job, found = job_of(), list[range]()
    job.on_started([1], num_cached=0, seed=1, queue_s=0.0, load_s=0.0)

    async def read() -> None:
        async def feed() -> None:
            for size in sizes:
                job.on_steps(rows([1] * size))
                await asyncio.sleep(0)
            _end(job)

        feeding = asyncio.create_task(feed())
        async for here in arrivals(job):
            assert here.stop <= len(job.steps)
            found.append(here)
        await feeding

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, read()).result(60)
    assert [index for here in found for index in here] == list(range(sum(sizes)))
    assert all(0 < len(here) <= MOST_AT_ONCE for here in found)
    assert not job._listeners
