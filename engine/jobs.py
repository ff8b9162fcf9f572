"""Jobs: the handle of a submitted request, a growing list of steps and then a Completion or an error.

Any engine feeds its jobs with plain values, from one thread for each job.
"""

import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from functools import partial
from typing import Any

import numpy as np

from engine.delivery import call_back, check_may_wait
from engine.errors import ConfigError, EngineError, JobTimeout
from engine.owner import OwnerProcess
from engine.results import Completion, FinishReason, Timings, is_context_full
from engine.specs import Origin, Request, Sampling
from engine.stages import stages_of
from engine.step_parts import RECORD
from engine.steps import StepTable, TokenStep
from engine.units import counted
from engine.vocabulary import Vocabulary


class Job(Future[Completion]):
    """A submitted job, as returned by Pool.submit: a concurrent.futures.Future of its Completion.

    Iterating (`for`, `async for`) yields each TokenStep as it is decoded; a late reader also starts from the first, and
    one that leaves, or whose task is cancelled, leaves the job running. `await job` returns the Completion; cancelling
    the task that awaits it (also by a timeout) cancels the job, except behind asyncio.shield. asyncio.wait takes
    asyncio.ensure_future(job). `steps` and `prompt_steps` grow while the job runs; `prompt_ids` is None until the job
    has left the queue.
    `compiled` is the sampling as sent to the worker, with a schema converted to a grammar; `sent` is the prompt as sent
    to the worker, a long text as ids. `origin` decides its turn in the queue.
    `cancel` and `position` are methods of the pool: they keep the pool alive until the job is over, even if nothing
    else refers to it. `is_cancelled` (by the caller), `is_retried` (queued again after its worker was lost) and
    `is_suspect` (that worker died, and not with its node) belong to the queue.
    """

    def __init__(
        self,
        job_id: str,
        prompt: str | list[int],
        sampling: Sampling,
        request: Request,
        vocabulary: Vocabulary,
        cancel: Callable[["Job"], object],
        position: Callable[["Job"], int],
        compiled: Sampling | None = None,
        origin: Origin | None = None,
    ) -> None:
        super().__init__()
        self.id, self.prompt, self.request = job_id, prompt, request
        self.sent = prompt
        self.sampling, self.compiled = sampling, compiled or sampling
        self.origin = origin or Origin()
        self.vocabulary = vocabulary
        stages = stages_of(sampling) if request.stages else ()
        self.steps = StepTable(vocabulary, request.top_k, stages=stages, watched=request.watched)
        self.prompt_steps = self._new_prompt_steps()
        self.prompt_ids: tuple[int, ...] | None = None
        self.num_cached, self.node = 0, ""
        self._num_prompt: int | None = None
        self._num_generated = 0
        self.seed: int | None = sampling.seed
        self.submitted = time.monotonic()
        self.is_cancelled = self.is_retried = self.is_suspect = False
        self._process = OwnerProcess()
        self._cancel, self._position = cancel, position
        self._queue_s = self._load_s = 0.0
        self._first_at = self._last_at = self._failed_at = 0.0
        self._ending, self._over = threading.Lock(), threading.Event()
        self._waiting: list[threading.Lock] = []
        self._completion: Completion | None = None
        self._error: EngineError | None = None
        self._callbacks: list[Callable[[Job], object]] = []
        self._listeners: dict[object, Callable[[], object]] = {}

    # interface for the caller

    def __iter__(self) -> Iterator[TokenStep]:
        index = 0
        while True:
            self._wait_for_step(index)
            while index < len(self.steps):
                yield self.steps[index]
                index += 1
            if self.done() and index >= len(self.steps):
                break
        if self._error is not None:
            raise self._error.bare()

    async def __aiter__(self) -> AsyncIterator[TokenStep]:
        from engine.arrivals import arrivals  # asyncio takes a tenth of the engine's import, and most need it not

        async with aclosing(arrivals(self)) as found:
            async for here in found:
                for index in here:
                    yield self.steps[index]

    def __await__(self) -> Generator[Any, None, Completion]:
        from engine.arrivals import ended

        return ended(self).__await__()

    def _wait_for_step(self, index: int) -> None:
        """Return once the step is there or the job is over. Each reader waits for a lock of its own, which `_notify`
        releases: a condition variable takes four more function calls a token on the delivery thread."""
        if len(self.steps) > index:
            return
        self.check_may_wait()
        mine = threading.Lock()
        mine.acquire()
        while len(self.steps) <= index and not self.done():
            self._waiting.append(mine)
            if len(self.steps) <= index and not self.done():  # a change from here on releases it
                mine.acquire()

    def check_may_wait(self) -> None:
        """Raise EngineError where the end of an open job would never come: a callback's thread, a forked process."""
        if not self.done():
            check_may_wait()
            self._process.check_pool()

    def result(self, timeout: float | None = None) -> Completion:
        """Wait for the job to end and return its Completion, a partial one after cancel().

        Raises JobTimeout after `timeout` seconds (the job goes on), or the EngineError that ended the job.
        """
        self.check_may_wait()
        if not self._over.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
            raise JobTimeout(f"no result after {timeout:g} s; the job continues, {len(self.steps):,} tokens so far")
        if self._error is not None:
            raise self._error.bare()
        assert self._completion is not None
        return self._completion

    def exception(self, timeout: float | None = None) -> EngineError | None:
        """Wait for the job to end; return the error that ended it, or None. Raises JobTimeout as result() does."""
        self.check_may_wait()
        try:
            self.result(timeout)
        except JobTimeout as error:
            if not self.done():
                raise
            return error
        except EngineError as error:
            return error
        return None

    def cancel(self) -> bool:
        """Stop the job at the next decode step; return False if it is over already.

        Its result is then what it has, so that `cancelled` stays False.
        """
        if self.done():
            return False
        self._cancel(self)
        return True

    def running(self) -> bool:
        """Return True from leaving the queue until the end."""
        return self.is_started and not self.done()

    def done(self) -> bool:
        """Return True once there is a Completion or an error."""
        return self._over.is_set()

    def add_done_callback(self, fn: Callable[["Job"], object]) -> None:
        """Call `fn(job)` when the job is over, immediately if it already is.

        Otherwise it runs in a thread of the pool, which may not wait for the pool. Exceptions it raises are logged.
        Raises ConfigError for the callback of asyncio.wait, which would never wake its loop from that thread.
        """
        if getattr(fn, "__module__", "") == "asyncio.tasks":
            raise ConfigError(
                "asyncio.wait takes no jobs: give it asyncio.ensure_future(job) for each, or use asyncio.gather"
            )
        with self._ending:
            if not self.done():
                self._callbacks.append(fn)
                return
        self._call(partial(fn, self))

    def add_listener(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call `listener()` after each change; returns a function that removes the listener.

        It runs in a thread of the pool, so it must be quick and may not wait for the pool. Exceptions it raises are
        logged.
        """
        key = object()
        with self._ending:
            if not self.done():
                self._listeners[key] = listener

        def remove() -> None:
            self._listeners.pop(key, None)

        return remove

    def __repr__(self) -> str:
        if self._error is not None:
            return f"<Job {self.id}: {type(self._error).__name__}>"
        ended = self._completion and self._completion.finish_reason
        state = ended or ("running" if self.is_started else "waiting")
        return f"<Job {self.id}: {state}, {counted(len(self.steps), 'token')}>"

    @property
    def is_started(self) -> bool:
        """True once the job has left the queue."""
        return self.prompt_ids is not None

    @property
    def queue_position(self) -> int:
        """Number of jobs that start before this one; 0 when it is next or has started."""
        return 0 if self.is_started or self.done() else self._position(self)

    @property
    def timings(self) -> Timings:
        """Timings so far; final once the job is over."""
        if self._completion is not None:
            return self._completion.timings
        num_generated = len(self.steps)
        now = self._failed_at or time.monotonic()
        waited = self._queue_s if self.is_started else now - self.submitted
        first = self._first_at if num_generated else now
        return Timings(
            queue_s=waited,
            load_s=self._load_s,
            prefill_s=max(first - self.submitted - waited, 0.0) if self.is_started else 0.0,
            ttft_s=first - self.submitted,
            decode_s=self._last_at - self._first_at,
            num_prompt=len(self.prompt_ids or ()),
            num_cached=self.num_cached,
            num_generated=num_generated,
        )

    def _new_prompt_steps(self) -> StepTable:
        request = self.request
        watched = request.watched if request.prompt_logprobs else ()
        return StepTable(self.vocabulary, request.top_k, is_prompt=True, watched=watched)

    # events from the engine, always delivered by one thread

    def on_started(
        self, prompt_ids: Sequence[int], *, num_cached: int, seed: int, queue_s: float, load_s: float, node: str = ""
    ) -> None:
        """Handle the job leaving the queue; this happens twice if its first worker died.

        num_cached: prompt ids found in a KV cache; queue_s: seconds in the queue; load_s: seconds of the model's load.
        node: where its worker runs in a cluster, empty for this machine.
        """
        self.prompt_steps = self._new_prompt_steps()
        self.num_cached, self.seed, self.node = num_cached, seed, node
        self._queue_s, self._load_s = queue_s, load_s
        known = prompt_ids[:1] if self.request.prompt_logprobs else prompt_ids
        records = np.zeros(len(known), RECORD)
        records["id"] = known
        records["p_final"] = records["draw"] = np.nan
        nothing = np.zeros((len(known), self.request.top_k), np.float32)
        self.prompt_steps.append(records, nothing.astype(np.int32) - 1, nothing, nothing)
        self.prompt_ids = tuple(prompt_ids)
        self._notify()

    def wait_again(self, *, is_suspect: bool) -> None:
        """Return to the waiting state: the worker was lost before the first token, and the job is queued again."""
        self.is_retried, self.is_suspect, self.prompt_ids = True, self.is_suspect or is_suspect, None

    def on_steps(self, rows: bytes, *, is_prompt: bool = False) -> None:
        """Append new steps; `rows` are records of steps.step_dtype for the job's number of candidates."""
        table = self.prompt_steps if is_prompt else self.steps
        if not is_prompt:
            self._last_at = time.monotonic()
            self._first_at = self._first_at or self._last_at
        table.append_bytes(rows)
        self._notify()

    def on_ended(
        self,
        reason: str,
        text_bytes: int,
        *,
        prefill_s: float,
        decode_s: float,
        threads: int | None = None,
        threads_batch: int | None = None,
        num_prompt: int | None = None,
        num_cached: int | None = None,
        num_generated: int | None = None,
    ) -> None:
        """Complete the job; text_bytes: length of the text in bytes, which ends before a stop string.

        num_prompt, num_cached, num_generated: counts of a server that tells them at the end, or tells the number of
        tokens but not each of them. An unknown `reason` is an error of the job. Does nothing if it is over already.
        """
        match reason:
            case "stop" | "length" | "cancelled" as known:
                self._num_prompt, self._num_generated = num_prompt, num_generated or 0
                self.num_cached = self.num_cached if num_cached is None else num_cached
                text = self._text(text_bytes)
                self._finish(text, known, prefill_s, decode_s, threads, threads_batch)
            case unknown:
                self.fail(EngineError(f"a worker ended this job for an unknown reason: {unknown!r}"))

    def on_cancelled(self) -> None:
        """Finish a cancelled job that no worker has."""
        self._finish(self._text(), "cancelled", 0.0, 0.0)

    def _text(self, num_bytes: int | None = None) -> str:
        return self.vocabulary.join(self.steps.ids)[:num_bytes].decode("utf-8", "replace")

    def _finish(
        self,
        text: str,
        reason: FinishReason,
        prefill_s: float,
        decode_s: float,
        threads: int | None = None,
        threads_batch: int | None = None,
    ) -> None:
        queue_s = self._queue_s if self.is_started else time.monotonic() - self.submitted
        num_generated = max(len(self.steps), self._num_generated)
        timings = Timings(
            queue_s=queue_s,
            load_s=self._load_s,
            prefill_s=prefill_s,
            ttft_s=queue_s + prefill_s,
            decode_s=decode_s,
            num_prompt=len(self.prompt_ids or ()) if self._num_prompt is None else self._num_prompt,
            num_cached=self.num_cached,
            num_generated=num_generated,
            threads=threads,
            threads_batch=threads_batch,
        )
        prompt_ids, seed = self.prompt_ids or (), self.seed or 0
        is_full = is_context_full(reason, num_generated, self.request.max_tokens)
        steps = self.steps, self.prompt_steps
        completion = Completion(text, *steps, prompt_ids, reason, timings, seed, self.id, is_full)
        self._close(completion, None)

    def fail(self, error: EngineError) -> None:
        """End the job with an error; does nothing if it is over already."""
        self._close(None, error)

    def _close(self, completion: Completion | None, error: EngineError | None) -> None:
        with self._ending:
            if self.done():
                return
            self._completion, self._error = completion, error and error.bare()
            self._failed_at = time.monotonic() if error else 0.0
            callbacks, self._callbacks = self._callbacks, []
            # set with the lock held: a callback added now is either in `callbacks` or called by the thread adding it
            self._over.set()
        if completion is not None:
            self.set_result(completion)
        else:
            self.set_exception(self._error)
        self._cancel = self._position = _nothing_left
        self._notify()
        self._listeners.clear()
        for callback in callbacks:
            self._call(partial(callback, self))

    def _notify(self) -> None:
        while self._waiting:
            try:
                reader = self._waiting.pop()
            except IndexError:  # another thread, which ends the job, was quicker
                break
            reader.release()
        if self._listeners:
            for listener in list(self._listeners.values()):
                self._call(listener)

    def _call(self, callback: Callable[[], object]) -> None:
        call_back(callback, f"a callback of job {self.id}")


def _nothing_left(_job: Job) -> int:
    return 0
