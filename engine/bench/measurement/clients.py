"""Clients of a pool: submit requests in order, wait for answers without polling, record timestamps."""

import math
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Self, TypeVar

import numpy as np

from engine.bench.measurement.metrics import Moments, Repetition, RequestTimes
from engine.errors import BenchTimeout, QueueFull
from engine.jobs import Job
from engine.step_parts import SHARED_MOMENT

Prompt = str | list[int]
T = TypeVar("T")


class Deadline:
    """Point in time by which an operation has to be finished."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._at = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """Seconds left until then, at least 0."""
        return max(0.0, self._at - time.monotonic())


def repeated(once: Callable[[], T], seconds_of: Callable[[T], float], num: int, at_least_s: float) -> list[T]:
    """Return the results of `num` calls of `once`, and of further ones until they amount to `at_least_s` seconds."""
    found, passed_s = list[T](), 0.0
    while len(found) < num or passed_s < at_least_s:
        found.append(once())
        passed_s += seconds_of(found[-1])
    return found


class _Asked(NamedTuple):
    stream: int
    prompt: Prompt
    at: float


class Clients:
    """Client streams that submit requests; a context manager that cancels open requests on exit.

    Requests that the pool has no room for wait in order, and count as submitted meanwhile.
    """

    def __init__(self, submit: Callable[[Prompt], Job], deadline: Deadline) -> None:
        self._submit, self._deadline = submit, deadline
        self._kept: deque[_Asked] = deque()
        self._open: dict[Job, _Asked] = {}
        self._answers: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._done: list[tuple[_Asked, Job]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._kept.clear()
        for job in self._open:
            job.cancel()

    def ask(self, stream: int, prompt: Prompt, at: float | None = None) -> None:
        """Submit one request, intended for now or for the monotonic second `at`."""
        self._kept.append(_Asked(stream, prompt, time.monotonic() if at is None else at))
        self._hand_over()

    def _hand_over(self) -> None:
        while self._kept:
            try:
                job = self._submit(self._kept[0].prompt)
            except QueueFull:
                return
            self._open[job] = self._kept.popleft()
            job.add_done_callback(self._answers.put)

    def answered(self, until: float = math.inf) -> int | None:
        """Wait for the next answer, at most until the monotonic second `until`; return its stream.

        Returns None at `until`, and at once where nothing is open and no `until` was given. Raises the error of a
        failed request, and BenchTimeout after the deadline.
        """
        if not self._open and until == math.inf:
            return None
        left_s = self._deadline.left_s
        try:
            job = self._answers.get(timeout=max(0.0, min(left_s, until - time.monotonic())))
        except queue.Empty:
            if self._deadline.left_s:
                return None
            raise self._too_late() from None
        asked = self._open.pop(job)
        job.result(0)
        self._done.append((asked, job))
        self._hand_over()
        return asked.stream

    def answer_all(self) -> None:
        """Wait until nothing is open."""
        while self.answered() is not None:
            pass

    def _too_late(self) -> BenchTimeout:
        num = len(self._done) + len(self._open) + len(self._kept)
        return BenchTimeout(
            f"{len(self._done):,} of {num:,} requests were answered within {self._deadline.timeout_s:g} s: the workers "
            "hang or are too slow; reduce the workload or allow more time"
        )

    def streams(self, released: float) -> Repetition:
        """Return the answered requests by stream; none counts as submitted before `released`."""
        found: dict[int, list[RequestTimes]] = {}
        for asked, job in self._done:
            found.setdefault(asked.stream, []).append(_times(job, max(asked.at, released)))
        return [found[stream] for stream in sorted(found)]


def answers(submit: Callable[[Prompt], Job], prompts: Iterable[Prompt], deadline: Deadline) -> Repetition:
    """Submit all prompts at once, each as a stream of its own, and wait for the answers."""
    with Clients(submit, deadline) as clients:
        for stream, prompt in enumerate(prompts):
            clients.ask(stream, prompt)
        clients.answer_all()
        return clients.streams(-math.inf)


def _times(job: Job, asked: float) -> RequestTimes:
    """Return the timestamps of a finished job, all on this machine's monotonic clock."""
    timings = job.result().timings
    started = job.submitted + timings.queue_s
    tokens, gaps = _moments(job)
    return RequestTimes(
        asked=asked,
        started=max(started, asked),
        first=started + timings.prefill_s,
        tokens=tokens,
        num_computed=timings.num_prompt - timings.num_cached,
        gaps=gaps,
    )


def _moments(job: Job) -> tuple[Moments, Moments | None]:
    """Return when each generated token came, and the gaps between them where servers send several tokens at once.

    A server may count more tokens than it sends pieces of text: then each piece has its share of them, and no gap is
    known.
    """
    records, num = job.steps.records, job.timings.num_generated
    tokens = job.submitted + np.cumsum(records["elapsed_s"])
    if num > len(tokens) > 0:
        return tokens[np.arange(num) * len(tokens) // num], np.full(num - 1, np.nan)
    is_shared = (records["flags"] & SHARED_MOMENT) > 0
    if not is_shared.any():
        return tokens, None
    has_others = is_shared | np.append(is_shared[1:], False)
    return tokens, np.where(has_others[1:], np.nan, np.diff(tokens))
