"""Worker process as seen by the pool: start-up, messages, calls, and the explanation of its death."""

import contextlib
import logging
import queue
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from engine import errors
from engine.errors import EngineError, ModelError, PoolClosed, WorkerDied
from engine.pool import messages as m
from engine.pool.job import Job
from engine.pool.watchdog import Watch
from engine.process.channel import Channel, Message
from engine.process.child import Child
from engine.process.pulse import Pulse
from engine.vocabulary import Vocabulary

_log = logging.getLogger(__name__)


class Startup(NamedTuple):
    """Breakdown of the seconds from starting a process until it is ready.

    interpreter_s: Python and its imports; load_s: weights and context; rest_s: the tokenizer's table and messages.
    """

    interpreter_s: float
    load_s: float
    rest_s: float


class WorkerProcess:
    """A running worker process.

    `jobs`: the jobs that it has, by their number on the wire; `texts`: texts that its KV cache may hold; both belong to
    the queue. `in_use`: its current thread counts. `watch`: its current phase. `failure`: the message that it reported
    before it exited, if it gave up.

    `build` is the folder of llama.cpp libraries that it loads, empty for those of the Python package. start() blocks
    until the model is loaded and raises ModelError (or the error that the worker reported) if loading fails.
    """

    def __init__(self, load: m.LoadModel, on_progress: Callable[[float], object], build: str = "") -> None:
        self.load = load
        self.in_use = m.InUse(load.threads, load.threads_batch)
        self.jobs: dict[int, Job] = {}
        self.texts: OrderedDict[str, tuple[bytes, int]] = OrderedDict()
        self.num_started = 0
        self.is_alive = False
        self._on_progress = on_progress
        self._calls: dict[int, Future[m.Answer]] = {}
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self.failure = self._stalled = ""
        self._child = Child("engine.pool.worker", build=build)
        self.watch = Watch(Pulse.shared_over(self._child.socket).read)
        self.channel = Channel(self._child.socket, _TO_POOL)
        threading.Thread(target=_write, args=(self.channel, self._outbox), daemon=True).start()

    def start(self) -> m.Ready:
        """Have the worker load the model; returns its Ready message."""
        try:
            self.send(self.load)
            while True:
                for message in self.channel.receive():
                    match message:
                        case m.Ready():
                            self.is_alive = True
                            self.ready, self.ready_at = message, time.monotonic()
                            return message
                        case m.Loading():
                            self._on_progress(message.progress)
                        case m.Failed():
                            self.close()
                            raise getattr(errors, message.error, ModelError)(message.text + self._child.log_tail())
        except (EOFError, OSError) as error:
            self.close()
            reason = self.reason_of_death()
            raise ModelError(f"{self.load.model}: the worker {reason} while it loaded the model") from error

    @property
    def startup(self) -> Startup:
        """Breakdown of the time until it was ready."""
        interpreter_s, load_s = self.ready.began - self._child.started_at, self.ready.load_s
        return Startup(interpreter_s, load_s, self.ready_at - self._child.started_at - interpreter_s - load_s)

    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary that the worker sent."""
        ready = self.ready
        pieces = tuple(ready.pieces)
        return Vocabulary(pieces, ready.kinds, ready.names, ready.bos, ready.add_bos, ready.add_space_prefix)

    def send(self, message: Message) -> None:
        """Queue a message from any thread without blocking: a worker reads only between its decode steps."""
        self._outbox.put(message)

    def call(self, make: Callable[[int], Message]) -> "Future[m.Answer]":
        """Send a call to the worker; the future fails with WorkerDied if it dies before it answers."""
        future: Future[m.Answer] = Future()
        number = id(future)
        self._calls[number] = future
        self.send(make(number))
        if not self.is_alive and self._calls.pop(number, None) is not None:
            future.set_exception(WorkerDied("the worker ended before it could answer"))
        return future

    def answered(self, answer: m.Answer) -> None:
        """Resolve the future of the call that this answers."""
        future = self._calls.pop(answer.call, None)
        if future is None:
            return
        if answer.error:
            future.set_exception(getattr(errors, answer.error, EngineError)(answer.text))
        else:
            future.set_result(answer)

    def died(self) -> EngineError:
        """Reap the dead process and fail its open calls; return the error for its open jobs."""
        was_told_to = not self.is_alive
        self.close()
        self.watch.look(0.0)
        error = (
            PoolClosed("the pool was closed before the worker could answer: open another")
            if was_told_to
            else WorkerDied(f"{self._last_deed()}; the pool starts another: run this again")
        )
        while self._calls:
            self._calls.popitem()[1].set_exception(error)
        return error

    def blamed(self) -> EngineError:
        """Return the error for the one job that the dead worker was working on."""
        return WorkerDied(
            f"{self._last_deed()}; it was at this request, which therefore no other worker gets: "
            "change its prompt, grammar or sampling"
        )

    def _last_deed(self) -> str:
        doing = self.watch.phase.words
        return f"{f'while {doing}, ' if doing else ''}the worker process {self.reason_of_death()}"

    def stall(self, reason: str) -> None:
        """Kill the hung worker; the thread that listens to it sees the socket close."""
        if self._child.is_alive:
            self._stalled = reason
            self._child.kill()
            self._child.hang_up()

    def hang_up(self) -> None:
        """Hang up, which makes the worker exit; does not wait."""
        self.is_alive = False
        self._outbox.put(None)
        self._child.hang_up()

    def kill(self) -> None:
        """Kill the worker without waiting."""
        self._child.kill()

    def close(self, patience_s: float = 3.0) -> None:
        """Hang up and wait for the worker to exit; kill it if that takes longer than `patience_s` seconds."""
        self.hang_up()
        self._child.close(patience_s)

    def reason_of_death(self) -> str:
        """Describe how the process ended, with the tail of its log if it crashed or exited by itself."""
        return self._stalled or (f"gave up: {self.failure}" if self.failure else self._child.ending())


_TO_POOL: Any = m.ToPool


def _write(channel: Channel, outbox: "queue.SimpleQueue[Message | None]") -> None:
    """Run a worker's writer thread; it ends with the worker, whose death the reader thread reports.

    If a message cannot be encoded, because of a defect, the worker's socket is shut down, so that no caller waits for
    an answer that never comes.
    """
    with contextlib.suppress(OSError):
        try:
            while (message := outbox.get()) is not None:
                channel.send(message)
        except (TypeError, ValueError, OverflowError):
            _log.exception("a message to a worker could not be written")
            channel.socket.shutdown(socket.SHUT_RDWR)
