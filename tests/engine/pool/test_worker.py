"""Worker loop with a scripted runner: what floods it, and what ends it."""

import itertools
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from engine.errors import ModelError
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
        self.sent: list[tuple[object, ...]] = []
        self.num_answers = 0

    def poll(self, _patience_ms: float | None) -> bool:
        return True

    def receive(self) -> list[m.ToWorker]:
        return [next(self._messages)]

    def send(self, *messages: object) -> None:
        self.sent.append(messages)
        self.num_answers += sum(isinstance(message, m.Answer) for message in messages)


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


def test_the_end_of_a_job_is_sent_together_with_the_steps_before_it() -> None:
    channel = ScriptedChannel(iter(()))
    outbox = Outbox(channel, lambda *_phase: None)  # type: ignore[arg-type]
    ended: Any = SimpleNamespace(
        job=1, prefill_s=0.1, decode_s=0.2, finish_reason="length", threads=1, threads_batch=1, text_bytes=2
    )
    outbox.steps(1, [b"a"], is_prompt=False)
    outbox.steps(2, [b"b"], is_prompt=False)
    outbox.ended(ended)
    outbox.failed(2, ModelError("no room"))
    outbox.steps(3, [b"c"], is_prompt=False)
    outbox.failed(3, ModelError("no room"))
    outbox.flush()
    assert channel.sent == [
        (
            m.Decoded([m.Steps(1, False, b"a"), m.Steps(2, False, b"b")]),
            m.Ended(1, "length", 2, 0.1, 0.2, "", "", 1, 1),
        ),
        (m.Ended(2, "", 0, 0.0, 0.0, "ModelError", "no room"),),
        (m.Decoded([m.Steps(3, False, b"c")]), m.Ended(3, "", 0, 0.0, 0.0, "ModelError", "no room")),
    ]
