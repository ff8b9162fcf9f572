"""One worker process from the pool's side: started, spoken to, and its death explained."""

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
    """Where the seconds from starting a process to its being ready went.

    interpreter_s: Python and its imports; load_s: weights and context; rest_s: the tokenizer's table and messages.
    """

    interpreter_s: float
    load_s: float
    rest_s: float


class Member:
    """A running worker. `jobs` are those it has, by their number on the wire; `texts` what its caches may hold: both
    are the queue's. `in_use`: its numbers of threads at this moment. `watch` says what it is at, `failure` what it said
    before it ended, where it gave up.

    `build` is the folder of llama.cpp libraries that it takes, empty for those of the Python package. start() blocks
    until the model is loaded and raises ModelError (or what the worker reported) if it is not.
    """

    def __init__(self, load: m.Load, on_progress: Callable[[float], object], build: str = "") -> None:
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
        """Have the model loaded; returns what the worker says of it."""
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
        """Where the time until it was ready went."""
        interpreter_s, load_s = self.ready.began - self._child.started_at, self.ready.load_s
        return Startup(interpreter_s, load_s, self.ready_at - self._child.started_at - interpreter_s - load_s)

    def vocabulary(self) -> Vocabulary:
        """The tokenizer's table as the worker sent it."""
        ready = self.ready
        pieces = tuple(ready.pieces)
        return Vocabulary(pieces, ready.kinds, ready.names, ready.bos, ready.add_bos, ready.add_space_prefix)

    def send(self, message: Message) -> None:
        """Send from any thread without waiting: a worker reads only between its decode steps."""
        self._outbox.put(message)

    def call(self, make: Callable[[int], Message]) -> "Future[m.Answer]":
        """Ask the worker something; the future fails with WorkerDied if it dies before it answers."""
        future: Future[m.Answer] = Future()
        number = id(future)
        self._calls[number] = future
        self.send(make(number))
        if not self.is_alive and self._calls.pop(number, None) is not None:
            future.set_exception(WorkerDied("the worker ended before it could answer"))
        return future

    def answered(self, answer: m.Answer) -> None:
        """Hand an answer to whoever asked."""
        future = self._calls.pop(answer.call, None)
        if future is None:
            return
        if answer.error:
            future.set_exception(getattr(errors, answer.error, EngineError)(answer.text))
        else:
            future.set_result(answer)

    def died(self) -> EngineError:
        """Collect the ended process; fails open calls, returns the error for open jobs."""
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
        """The error for the one job that the dead worker was at."""
        return WorkerDied(
            f"{self._last_deed()}; it was at this request, which therefore no other worker gets: "
            "change its prompt, grammar or sampling"
        )

    def _last_deed(self) -> str:
        doing = self.watch.phase.words
        return f"{f'while {doing}, ' if doing else ''}the worker process {self.reason_of_death()}"

    def stall(self, reason: str) -> None:
        """End the worker, which stands still; what listens to it sees the end."""
        if self._child.is_alive:
            self._stalled = reason
            self._child.kill()
            self._child.hang_up()

    def hang_up(self) -> None:
        """Tell the worker to end, without waiting."""
        self.is_alive = False
        self._outbox.put(None)
        self._child.hang_up()

    def kill(self) -> None:
        """End the worker at once, without waiting."""
        self._child.kill()

    def close(self, patience_s: float = 3.0) -> None:
        """Hang up and wait for the worker's end; kill it if that takes longer than `patience_s` seconds."""
        self.hang_up()
        self._child.close(patience_s)

    def reason_of_death(self) -> str:
        """How the process ended, in words, with the end of its log."""
        return self._stalled or (f"gave up: {self.failure}" if self.failure else self._child.ending())


_TO_POOL: Any = m.ToPool


def _write(channel: Channel, outbox: "queue.SimpleQueue[Message | None]") -> None:
    """A member's writer thread; ends with the worker, whose death the reader reports.

    Where a message cannot be written, through a defect, the worker is ended: nobody waits for an answer to it.
    """
    with contextlib.suppress(OSError):
        try:
            while (message := outbox.get()) is not None:
                channel.send(message)
        except (TypeError, ValueError, OverflowError):
            _log.exception("a message to a worker could not be written")
            channel.socket.shutdown(socket.SHUT_RDWR)
