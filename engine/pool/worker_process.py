"""Worker process as seen by the pool: start-up, messages, calls, and the explanation of its death."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from engine.errors import EngineError, ModelError, PoolClosed, WorkerDied, named_error
from engine.jobs import Job
from engine.pool import messages as m
from engine.pool.watchdog import Watch
from engine.pool.worker_link import WorkerLink
from engine.process.channel import Message
from engine.process.outgoing import Outgoing
from engine.protocol import Startup, WorkerInfo
from engine.vocabulary import Vocabulary

_NUM_READINGS = 5


class WorkerProcess:
    """A running worker process.

    `jobs`: the jobs that it has, by their number on the wire; `texts`: texts that its KV cache may hold; both belong to
    the queue. `in_use`: its current thread counts. `watch`: its current phase. `failure`: the message that it reported
    before it exited, if it gave up. `epoch`: when it began to load, in this clock's seconds. `node`: where it runs,
    empty for this machine. `is_leaving`: it gets no more jobs, and ends after its last one.

    It runs at the other end of `link`. start() blocks until the model is loaded and raises ModelError, or the error
    that the worker reported, if loading fails.
    """

    def __init__(
        self, load: m.LoadModel, on_progress: Callable[[float], object], link: WorkerLink, node: str = ""
    ) -> None:
        self.load, self.node = load, node
        self.in_use = m.InUse(load.threads, load.threads_batch)
        self.jobs: dict[int, Job] = {}
        self.texts: OrderedDict[str, tuple[bytes, int]] = OrderedDict()
        self.is_alive = self.is_leaving = False
        self.epoch, self._asked_at, self._num_readings = -math.inf, 0.0, 0
        self._on_progress = on_progress
        self._calls: dict[int, Future[m.Answer]] = {}
        self.failure = self._stalled = ""
        self.transport, self._life, heartbeat = link
        self.watch = Watch(heartbeat, lambda: self._life.is_suspended)
        self._outgoing = Outgoing(self.transport, self._life.hang_up)

    def start(self) -> m.Ready:
        """Have the worker load the model; returns its Ready message."""
        try:
            self.send(self.load)
            while not self.is_alive:
                for message in self.transport.receive():
                    match message:
                        case m.Ready():
                            self.ready, self.ready_at = message, time.monotonic()
                            self._read_clock()
                        case m.Clock():
                            self._read_clock(message)
                        case m.Loading():
                            self._on_progress(message.progress)
                        case m.Failed():
                            self.close()
                            raise named_error(message.error, message.text + self._life.log_tail(), ModelError)
        except (EOFError, OSError) as error:
            self.close()
            reason = self.reason_of_death()
            raise ModelError(f"{self.load.model}: the worker {reason} while loading the model") from error
        return self.ready

    def _read_clock(self, clock: m.Clock | None = None) -> None:
        """Ask for the worker's clock again, or know its epoch from the quickest of several answers.

        The worker read its clock after it was asked, so the epoch found is never too late, and too early by no more
        than one round trip: 0.1 ms where both are on one machine.
        """
        if clock is not None:
            self.epoch = max(self.epoch, self._asked_at - clock.elapsed_s)
            self._num_readings += 1
            self.is_alive = self._num_readings == _NUM_READINGS
        if not self.is_alive:
            self._asked_at = time.monotonic()
            self.send(m.ReadClock())

    @property
    def startup(self) -> Startup:
        """Breakdown of the time until it was ready."""
        load_s = self.ready.load_s
        return Startup(self.epoch - self._life.started_at, load_s, self.ready_at - self.epoch - load_s)

    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary that the worker sent."""
        ready = self.ready
        pieces = tuple(ready.pieces)
        return Vocabulary(pieces, ready.kinds, ready.names, ready.bos, ready.add_bos, ready.add_space_prefix)

    def send(self, message: Message) -> None:
        """Send a message from any thread without blocking: a worker reads only between its decode steps."""
        self._outgoing.send(message)

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
            future.set_exception(named_error(answer.error, answer.text))
        else:
            future.set_result(answer)

    def died(self) -> EngineError:
        """Reap the dead process and fail its open calls; return the error for its open jobs."""
        was_asked_to = not self.is_alive
        self.close()
        self.watch.look(0.0)
        error: EngineError = WorkerDied(f"{self._last_deed()}; the pool is starting another: run this again")
        if self.is_leaving:
            error = WorkerDied(f"{self._last_deed()}; it was being removed from the pool: run this again")
        elif was_asked_to:
            error = PoolClosed("the pool was closed before the worker could answer: open another")
        while self._calls:
            self._calls.popitem()[1].set_exception(error)
        return error

    def blamed(self) -> EngineError:
        """Return the error for the one job that the dead worker was working on."""
        return WorkerDied(
            f"{self._last_deed()}; it was working on this request, which is not retried: "
            "change its prompt, grammar or sampling",
            is_blamed=True,
        )

    def info(self, jobs: Sequence[Job]) -> WorkerInfo:
        """Return its state; jobs: those that it has."""
        num_running = sum(job.is_started for job in jobs)
        return WorkerInfo(
            pid=self.ready.pid,
            cpus=tuple(self.load.cpus),
            num_running=num_running,
            num_waiting=len(jobs) - num_running,
            phase=self.watch.phase.name.lower(),
            phase_s=self.watch.phase_s,
            threads=self.in_use.threads,
            threads_batch=self.in_use.threads_batch,
            node=self.node,
            is_leaving=self.is_leaving,
        )

    @property
    def is_machine_lost(self) -> bool:
        """True where it ended with its node."""
        return self._life.is_machine_lost

    def _last_deed(self) -> str:
        doing = self.watch.phase.words
        return f"{f'while {doing}, ' if doing else ''}the worker process {self.reason_of_death()}"

    def stall(self, reason: str) -> None:
        """Kill the hung worker; the thread that listens to it sees the socket close."""
        if self._life.is_alive:
            self._stalled = reason
            self._life.kill()
            self._life.hang_up()

    def hang_up(self) -> None:
        """Hang up, which makes the worker exit; does not wait."""
        self.is_alive = False
        self._outgoing.close()
        self._life.hang_up()

    def kill(self) -> None:
        """Kill the worker without waiting."""
        self._life.kill()

    def close(self, patience_s: float = 3.0) -> None:
        """Hang up and wait for the worker to exit; kill it if that takes longer than `patience_s` seconds."""
        self.hang_up()
        self._life.close(patience_s)

    def reason_of_death(self) -> str:
        """Describe how the process ended, with the tail of its log if it crashed or exited by itself."""
        return self._stalled or (f"gave up: {self.failure}" if self.failure else self._life.ending())
