"""A worker process over a scripted link: its clock, its death while it loads, and its removal."""

import queue
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from engine.errors import MemoryRefused, ModelError, PoolClosed, WorkerDied
from engine.pool import messages as m
from engine.pool import worker_group
from engine.pool.worker_link import WorkerLink
from engine.pool.worker_process import WorkerProcess
from engine.process.channel import Message
from engine.process.pulse import Reading
from engine.specs import PoolSpec
from tests.waiting import Clock

LOAD = m.LoadModel(
    protocol=m.PROTOCOL, model="m.gguf", spec=PoolSpec(), threads=1, threads_batch=1, cpus=[], prefill_share=50
)
READY = m.Ready(
    protocol=m.PROTOCOL, pid=7, load_s=0.5, n_ctx=512, pieces=[], kinds=b"", names={}, bos=None, add_bos=False,
    add_space_prefix=False, chat_template="", description="", is_recurrent=False,
)  # fmt: skip


class ScriptedLife:
    started_at = 0.0
    is_alive = True
    is_suspended = is_machine_lost = False

    def hang_up(self) -> None: ...

    def kill(self) -> None: ...

    def close(self, patience_s: float) -> None: ...

    def ending(self) -> str:
        return "crashed (SIGSEGV)"

    def log_tail(self) -> str:
        return ""


class ScriptedTransport:
    """Answers as a worker that began to load at `epoch` of this clock. reply: instead of Ready; None: it hangs up."""

    def __init__(self, epoch: float, reply: Message | None = READY) -> None:
        self._epoch, self._reply = epoch, reply
        self._received: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()

    def encoded(self, message: Message) -> memoryview:
        self._message = message
        return memoryview(b"m")

    def offer(self, frame: memoryview) -> memoryview:
        match self._message:
            case m.LoadModel():
                self._received.put(None if self._reply is None else [m.Loading(0.5), self._reply])
            case m.ReadClock():
                self._received.put([m.Clock(time.monotonic() - self._epoch)])
        return frame[1:]

    def finish(self, frame: memoryview) -> None: ...

    def receive(self) -> list[Any]:
        messages = self._received.get()
        if messages is None:
            raise EOFError
        return messages


def worker(transport: ScriptedTransport) -> WorkerProcess:
    link = WorkerLink(transport, ScriptedLife(), lambda: Reading(1, 1, 0, 0))
    return WorkerProcess(LOAD, lambda _fraction: None, link)


@pytest.mark.parametrize("epoch", [-5e6, 0.0, 3.25, 5e6])
def test_the_epoch_of_a_worker_is_known_from_its_clock_and_never_too_late(epoch: float) -> None:
    one = worker(ScriptedTransport(epoch))
    asked = time.monotonic()
    assert one.start() is READY
    took = time.monotonic() - asked
    assert one.is_alive
    assert epoch - took <= one.epoch <= epoch + 1e-6


def test_a_worker_that_ends_while_it_loads_is_an_error_of_the_model() -> None:
    with pytest.raises(ModelError, match=r"the worker crashed \(SIGSEGV\)"):
        worker(ScriptedTransport(0.0, None)).start()


def test_the_error_that_a_worker_reports_is_raised() -> None:
    with pytest.raises(MemoryRefused, match="too large"):
        worker(ScriptedTransport(0.0, m.Failed("MemoryRefused", "too large"))).start()


def test_a_call_to_a_worker_that_is_removed_fails_as_one_to_a_dead_worker_and_not_as_one_to_a_closed_pool() -> None:
    removed, closed = worker(ScriptedTransport(0.0)), worker(ScriptedTransport(0.0))
    for one, kind in ((removed, WorkerDied), (closed, PoolClosed)):
        one.start()
        one.is_leaving = one is removed
        call = one.call(m.Measure)
        one.hang_up()
        one.died()
        assert type(call.exception(60)) is kind


def test_workers_have_the_same_time_to_exit_when_a_pool_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(worker_group, "time", SimpleNamespace(monotonic=lambda: clock.now))
    given: list[float] = []

    def slow(patience_s: float) -> None:
        given.append(patience_s)
        clock.now += patience_s

    ones: Any = {index: SimpleNamespace(hang_up=lambda: None, close=slow) for index in range(3)}
    places: Any = SimpleNamespace(close=lambda: None)
    worker_group._close(ones, places, threading.Event())
    assert given == [worker_group._CLOSING_S, 0.0, 0.0]
