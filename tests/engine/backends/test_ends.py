"""Ends of external engines: what is cancelled, closed or given up leaves nothing behind that waits for ever."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from engine.backends import link
from engine.backends.answer import Answer
from engine.backends.known import KnownEngine
from engine.backends.openai_server import ServerEngine
from engine.backends.server_loop import ServerLoop
from engine.errors import BenchTimeout, EngineError, PoolClosed, ServerFailed
from engine.ids import new_id
from engine.workbench import model_manager
from engine.workbench.model_manager import ModelManager
from tests.engine.backends.fake_server import COMPLETIONS, Request, chunk, engine_with, fake_server
from tests.waiting import until


@contextmanager
def silent_server() -> Iterator[tuple[str, threading.Event]]:
    """A server that never answers a request to generate; gives its address, and the event of the first of them."""
    is_asked, is_over = threading.Event(), threading.Event()

    def silent(_request: Request) -> None:
        is_asked.set()
        is_over.wait(120)

    with fake_server({COMPLETIONS: silent}) as (address, _):
        try:
            yield address, is_asked
        finally:
            is_over.set()


@contextmanager
def hanging_engine(num_sequences: int = 8) -> Iterator[ServerEngine]:
    """An engine on a server that sends one token of each answer, and nothing after it."""
    is_over = threading.Event()

    def hanging(request: Request) -> None:
        request.events(chunk(" a"), cut=True)
        is_over.wait(120)

    with engine_with(hanging, num_sequences=num_sequences) as (engine, _):
        try:
            yield engine
        finally:
            is_over.set()


def in_thread(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


async def nothing() -> None:
    """End at once."""


def test_a_connection_to_a_silent_server_is_aborted() -> None:
    manager = ModelManager()
    with silent_server() as (address, is_asked):
        manager.connect(KnownEngine(name="silent", url=address))
        assert is_asked.wait(60)
        closing = in_thread(manager.close)
        closing.join(60)
        assert not closing.is_alive()  # it waits for the load, which has ended
    assert manager.state.engine is None and not manager.state.is_loading


def test_a_connection_to_a_silent_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_manager, "CONNECTS_WITHIN_S", 0.05)
    manager = ModelManager()
    with silent_server() as (address, _):
        manager.connect(KnownEngine(name="silent", url=address))
        until(lambda: manager.state.error)
    assert isinstance(manager.state.error, BenchTimeout) and "the server answers too slowly" in str(manager.state.error)
    manager.close()


def test_an_error_without_an_end_fails_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()

    def endless_error(request: Request) -> None:
        monkeypatch.setattr(link, "ANSWERS_WITHIN_S", 0.05)
        request.send_response(500)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", "100")
        request.end_headers()
        is_over.wait(120)

    with engine_with(endless_error) as (engine, _):
        error = engine.submit("Once").exception(60)
        is_over.set()
    assert isinstance(error, ServerFailed) and "did not finish its error within 0.05 s" in str(error)


def test_jobs_that_are_cancelled_at_once_end() -> None:
    with hanging_engine() as engine:
        for _ in range(100):
            job = engine.submit("Once")
            job.cancel()
            assert job.result(60).finish_reason == "cancelled"


def test_an_engine_that_is_closed_at_once_leaves_no_connection_half_begun() -> None:
    for _ in range(20):
        with hanging_engine() as engine:
            job = engine.submit("Once")
            engine.close("closed")
        assert isinstance(job.exception(60), PoolClosed)
    gc.collect()  # what was never awaited is reported then, as a warning, which is an error


def test_two_jobs_of_the_same_id_are_both_cancelled() -> None:
    with hanging_engine() as engine:
        id = new_id()
        jobs = [engine.submit("Once", job_id=id) for _ in range(2)]
        until(lambda: all(len(job.steps) for job in jobs))
        for job in jobs:
            job.cancel()
        assert [job.result(60).finish_reason for job in jobs] == ["cancelled", "cancelled"]


def test_a_job_starts_when_the_request_of_a_cancelled_one_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    num_open, most_open, stream = 0, 0, link.Link.stream

    @asynccontextmanager
    async def slow_to_leave(self: link.Link, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        nonlocal num_open, most_open
        num_open += 1
        most_open = max(most_open, num_open)
        try:
            async with stream(self, *arguments, **options) as events:
                yield events
        finally:
            await asyncio.sleep(0.1)
            num_open -= 1

    with hanging_engine(num_sequences=1) as engine:
        monkeypatch.setattr(link.Link, "stream", slow_to_leave)
        first, second = [engine.submit("Once") for _ in range(2)]
        until(lambda: len(first.steps))
        first.cancel()
        until(lambda: len(second.steps))
        second.cancel()
        assert second.result(60).finish_reason == "cancelled"
    assert most_open == 1


@pytest.mark.parametrize("name", ["take", "finish"])
def test_a_defect_in_reading_an_answer_fails_its_job(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object) -> None:
        raise ZeroDivisionError

    with engine_with(lambda request: request.events(chunk(" a", finish="length"))) as (engine, _):
        monkeypatch.setattr(Answer, name, broken)
        error = engine.submit("Once").exception(60)
    assert isinstance(error, EngineError) and "ZeroDivisionError" in str(error)


def test_what_begins_while_a_loop_closes_ends_or_is_refused() -> None:
    loop, is_begun = ServerLoop(), threading.Event()
    begun: list[Future[None]] = []

    def begin() -> None:
        try:
            while True:
                begun.append(loop.begin(asyncio.sleep(120)))
                is_begun.set()
        except PoolClosed:
            pass

    threads = [in_thread(begin) for _ in range(3)]
    assert is_begun.wait(60)
    loop.close(nothing())
    for thread in threads:
        thread.join(60)
    for future in begun:
        with pytest.raises(CancelledError):
            future.result(60)


def test_a_loop_ends_its_threads_though_its_last_work_fails() -> None:
    async def failing() -> None:
        raise OSError

    before = set(threading.enumerate())
    loop = ServerLoop()
    loop.close(failing())
    until(lambda: set(threading.enumerate()) <= before)
