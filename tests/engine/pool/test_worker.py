"""Worker loop with a scripted runner: what floods it, and what ends it."""

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from engine.llama.runner import QueuedRequest
from engine.pool import messages as m
from engine.pool.worker import Outbox, Worker
from engine.specs import Request, Sampling

START = m.AddRequest(1, "a", Sampling(), Request(), 0.0)


class ScriptedRunner:
    """Runner that reports that a job is computed by ending the worker's loop."""

    def __init__(self, *, is_idle: bool) -> None:
        self.is_idle = is_idle
        self.submitted: list[QueuedRequest] = []

    def submit(self, order: QueuedRequest) -> None:
        self.submitted.append(order)
        self.is_idle = False

    def step(self) -> None:
        if self.submitted:
            raise EOFError("computed")


class ScriptedChannel:
    """Channel that always has another message, read one at a time."""

    def __init__(self, messages: Iterator[m.ToWorker]) -> None:
        self._messages = messages
        self.num_answers = 0

    def poll(self, _patience_ms: float | None) -> bool:
        return True

    def receive(self) -> list[m.ToWorker]:
        return [next(self._messages)]

    def send(self, message: object) -> None:
        self.num_answers += isinstance(message, m.Answer)


FLOODS: dict[str, m.ToWorker] = {
    "questions": m.Tokenize(7, "a", special=False),
    "cancels": m.Cancel(99),
    "prompts": START,
    "holds": m.Hold(False),
}


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("is_idle", [True, False])
def test_a_job_is_computed_while_messages_never_stop(flood: str, *, is_idle: bool) -> None:
    channel = ScriptedChannel(itertools.chain([FLOODS[flood], START], itertools.repeat(FLOODS[flood])))
    worker: Any = Worker.__new__(Worker)
    runner = ScriptedRunner(is_idle=is_idle)
    runner.cancel = lambda _job: None  # type: ignore[attr-defined]
    worker._channel = worker._inbox = channel
    worker._runner, worker._is_held, worker._stamp = runner, False, lambda *_phase: None
    worker._outbox = Outbox(channel, worker._stamp)  # type: ignore[arg-type]
    worker._model = type("Model", (), {"tokenize": lambda self, text, **_options: [1]})()
    worker._sent_at = worker._loop_s = worker._epoch = 0.0
    ended: list[str] = []

    def serve() -> None:
        with pytest.raises(EOFError, match="computed"):
            worker.serve()
        ended.append("computed")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    thread.join(60)
    assert ended == ["computed"]


def test_only_steps_with_the_first_token_of_a_job_are_urgent() -> None:
    outbox = Outbox(ScriptedChannel(iter(())), lambda *_phase: None)  # type: ignore[arg-type]
    for job in (1, 2):
        outbox.started(job, [5], 0, 1, 0.0)
    outbox.steps(1, [b"row"], is_prompt=True)
    assert not outbox.is_urgent
    for job in (1, 2):
        outbox.steps(job, [b"row"], is_prompt=False)
        assert outbox.is_urgent
        outbox.flush()
        outbox.steps(job, [b"row"], is_prompt=False)
        assert not outbox.is_urgent
    outbox.started(3, [5], 0, 1, 0.0)
    outbox.cancelled(3)
    outbox.steps(3, [b"row"], is_prompt=False)
    assert not outbox.is_urgent
