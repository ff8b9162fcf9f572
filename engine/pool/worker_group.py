"""Worker group: starts the workers of one pool together, listens to them, replaces and shuts them down."""

import logging
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from typing import Protocol

from engine.delivery import check_may_wait, listening
from engine.errors import EngineError, JobTimeout, PoolClosed, WorkerDied
from engine.owner import OwnerProcess
from engine.pool import messages as m
from engine.pool.attempts import Attempts
from engine.pool.places import NotNow, Places
from engine.pool.watchdog import keep_watch
from engine.pool.worker_process import WorkerProcess
from engine.process.channel import Message

_log = logging.getLogger(__name__)

_CLOSING_S = 3.0
"""How long workers have to exit when a pool is closed, all together."""


class Owner(Protocol):
    """Receiver of the workers' messages, called from a separate thread for each worker."""

    def on_message(self, worker: WorkerProcess, message: m.ToPool) -> None:
        """Handle a message from a worker."""

    def on_death(self, worker: WorkerProcess, index: int) -> bool:
        """Handle a worker's death: its end of the socket is closed; return whether it is to be replaced."""

    def replace(self, attempts: Attempts) -> bool:
        """Start the replacement of a dead worker; return False where this is to be tried again."""


class WorkerGroup:
    """Group of `size` workers, each started in its place; more may be added, and removed.

    Shuts them down when it is closed or garbage-collected. It refers to its owner weakly, so that a pool without other
    references and without open jobs is collected and its workers end.
    """

    def __init__(
        self,
        size: int,
        places: Places,
        owner: Owner,
        on_progress: Callable[[float], object],
    ) -> None:
        self._places, self._owner, self._on_progress = places, weakref.ref(owner), on_progress
        self._fractions = dict.fromkeys(range(size), 0.0)
        self._workers: dict[int, WorkerProcess] = {}
        self._hold_lock, self._num_holds = threading.Lock(), 0
        self._is_aborted = False
        self._is_over = threading.Event()
        self._process = OwnerProcess()
        self.close = weakref.finalize(self, _close, self._workers, places, self._is_over)

    @property
    def alive(self) -> list[WorkerProcess]:
        """Workers that have loaded and still run."""
        return [worker for worker in _present(self._workers) if worker.is_alive]

    @property
    def size(self) -> int:
        """Number of workers, with those that are being replaced."""
        return len(self._fractions)

    @property
    def is_closed(self) -> bool:
        """True once the workers have been shut down."""
        return not self.close.alive

    def check_open(self) -> None:
        """Raise PoolClosed if the pool is closed, or belongs to the process that this one was forked from."""
        self._process.check_pool()
        if self.is_closed:
            raise PoolClosed("this pool is closed: open another")

    def start_all(self) -> None:
        """Start all workers in parallel; after a failure all are shut down and the first error is raised.

        Raises PoolClosed after abort(). An exception raised by `on_progress`, or an interrupt, ends the load too.
        """
        watched = partial(_present, self._workers)
        threading.Thread(target=keep_watch, args=(watched, self._is_over), daemon=True).start()
        failures: list[BaseException] = []

        def start(index: int) -> None:
            try:
                self.start(index)
            except BaseException as error:  # on_progress may raise SystemExit, which would end this thread alone
                failures.append(error)

        starters = [threading.Thread(target=start, args=(index,), daemon=True) for index in self._fractions]
        for starter in starters:
            starter.start()
        try:
            for starter in starters:
                starter.join()
        except BaseException:
            self.abort()
            raise
        if self._is_aborted:
            raise PoolClosed("loading was cancelled before the model was ready: open the pool again")
        if failures:
            self.close()
            raise failures[0]

    def abort(self) -> None:
        """Abort a load immediately from another thread, even if its workers hang."""
        self._is_aborted = True
        for worker in _present(self._workers):
            worker.kill()
        self.close()

    def start(self, index: int) -> None:
        """Start a worker that has not run yet; returns when it is ready. Raises EngineError."""
        attempts = Attempts(self._places, index, is_replacement=False)
        while not self.attempt(attempts):
            attempts.pause()

    def attempt(self, attempts: Attempts) -> bool:
        """Start one worker, or replace a dead one; returns True when it is ready, False where it failed and is to be
        tried again. Raises EngineError where it is not."""
        index, worker = attempts.index, None
        try:
            worker = self._started(index, is_again=attempts.num_failed > 0)
            if not self.is_closed:  # close() hangs up on the workers that it sees; this one may have come after it
                worker.start()
        except (EngineError, NotNow) as failure:
            is_node_lost = worker is not None and worker.is_machine_lost
            runs_others = any(one.is_alive and not one.is_leaving for one in _present(self._workers))
            attempts.failed(failure, is_node_lost=is_node_lost, runs_others=runs_others)
            return False
        if self.is_closed:
            worker.close(patience_s=0.0)
            return True
        with self._hold_lock:
            if self._num_holds:
                worker.send(m.Hold(True))
        places = self._places
        threading.Thread(target=_listen, args=(self._owner, places, worker, index), daemon=True).start()
        return True

    def _started(self, index: int, *, is_again: bool) -> WorkerProcess:
        """Start the program of a worker, which has loaded nothing yet."""
        fractions, on_progress = self._fractions, self._on_progress

        def progress(fraction: float) -> None:
            fractions[index] = fraction
            on_progress(sum(fractions.values()) / len(fractions))

        started = self._places.start(index, is_again=is_again)
        worker = WorkerProcess(started.order, progress, started.link, started.node)
        self._workers[index] = worker
        return worker

    def add(self, index: int) -> None:
        """Start one more worker in a place of this index; returns when it is ready. Raises EngineError."""
        self.check_open()
        self._fractions[index] = 0.0
        try:
            self.start(index)
            self.check_open()
        except BaseException:
            self.forget(index)
            raise

    def forget(self, index: int) -> None:
        """Take out a worker that has ended for good."""
        self._workers.pop(index, None)
        self._fractions.pop(index, None)
        self._places.give_up(index)

    def hold(self, change: int) -> None:
        """Count `change` more blocks that hold the workers, -1 for one that has ended; they go on when none is left."""
        with self._hold_lock:
            self._num_holds += change
            for worker in self.alive:
                worker.send(m.Hold(self._num_holds > 0))

    def ask(self, make: Callable[[int], Message]) -> m.Answer:
        """Call the worker with the fewest jobs and return its answer; raises PoolClosed, WorkerDied, or the error that
        the worker reports."""
        check_may_wait()
        while True:
            workers = [worker for worker in self.alive if not worker.is_leaving]
            self.check_open()
            if not workers:
                raise WorkerDied("the worker ended and a replacement is starting: try again in a few seconds")
            worker = min(workers, key=lambda one: len(one.jobs))
            try:
                return worker.call(make).result()
            except WorkerDied:
                if not worker.is_leaving:  # it was removed meanwhile, and others run
                    raise

    def measure(self, timeout: float | None) -> list[dict[str, float]]:
        """Return each worker's own counters; raises JobTimeout if one has not answered after `timeout` seconds."""
        check_may_wait()
        self._process.check_pool()
        calls = [(worker, worker.call(m.Measure)) for worker in self.alive]
        if wait([future for _worker, future in calls], timeout).not_done:
            raise JobTimeout(f"a worker did not report its figures within {timeout:g} s: it is in a long step or hangs")
        return [future.result().figures for worker, future in calls if not (worker.is_leaving and future.exception())]


def _listen(owner: "weakref.ref[Owner]", places: Places, worker: WorkerProcess, index: int) -> None:
    """Deliver a worker's messages, and replace it once it has died.

    Between attempts nothing refers to the owner, so that a pool without other references is collected meanwhile.
    """
    with listening():
        try:
            _deliver(owner, worker)
        except BaseException:
            # without a listener the worker's jobs would never end, so it counts as dead
            _log.exception("a worker's message could not be delivered")
        if not _is_to_be_replaced(owner, worker, index):
            return
        attempts = Attempts(places, index, is_replacement=True)
        while not _is_replaced(owner, attempts):
            attempts.pause()


def _is_to_be_replaced(owner: "weakref.ref[Owner]", worker: WorkerProcess, index: int) -> bool:
    alive = owner()
    return alive is not None and alive.on_death(worker, index)


def _is_replaced(owner: "weakref.ref[Owner]", attempts: Attempts) -> bool:
    """Return True once a replacement runs, or nobody needs it."""
    alive = owner()
    return alive is None or alive.replace(attempts)


def _deliver(owner: "weakref.ref[Owner]", worker: WorkerProcess) -> None:
    """Deliver the worker's messages to the owner until either of them is gone."""
    while True:
        try:
            messages = worker.transport.receive()
        except (EOFError, OSError):
            return
        alive = owner()
        if alive is None:
            return
        for message in messages:
            alive.on_message(worker, message)
        del alive


def _present(workers: dict[int, WorkerProcess]) -> list[WorkerProcess]:
    """Return the workers by their index; a copy, as other threads add and remove some."""
    return [worker for _index, worker in sorted(workers.copy().items())]


def _close(workers: dict[int, WorkerProcess], places: Places, is_over: threading.Event) -> None:
    """Hang up on all workers, wait for each to exit, then give up their places."""
    is_over.set()
    for worker in _present(workers):
        worker.hang_up()
    until = time.monotonic() + _CLOSING_S
    for worker in _present(workers):
        worker.close(max(0.0, until - time.monotonic()))
    places.close()
