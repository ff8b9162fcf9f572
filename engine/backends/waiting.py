"""Jobs of a server that wait and run: no more at once than it has sequences, in the order of the pool's lanes."""

import threading
from collections.abc import Callable

from engine.delivery import check_may_wait
from engine.errors import PoolClosed, QueueFull
from engine.jobs import Job
from engine.pool.lanes import Lanes
from engine.specs import Origin


class WaitingJobs:
    """Queue of at most `most_waiting` jobs in each lane, and the jobs that run.

    start: called with each job that leaves the queue, without the lock. Any thread may call the methods.
    """

    def __init__(self, start: Callable[[Job], object], *, num_sequences: int, most_waiting: int) -> None:
        self._start, self._num_sequences, self._most_waiting = start, num_sequences, most_waiting
        self._room = threading.Condition()
        self._waiting: Lanes[Job] = Lanes()
        self._running: dict[Job, None] = {}
        self._is_paused = self._is_closed = False
        self._num_holding = 0

    def add(self, job: Job) -> None:
        """Append a job; raises QueueFull, PoolClosed."""
        if not self.try_add(job):
            raise QueueFull(f"the queue is full, {self._most_waiting:,} jobs are waiting: wait, then try again")

    def try_add(self, job: Job) -> bool:
        """Append a job; return False if its lane is full for its client. Raises PoolClosed."""
        with self._room:
            self.check_open()
            if self._is_full(job.origin):
                return False
            self._waiting.add(job, job.origin)
        self._dispatch()
        return True

    def wait_for_room(self, origin: Origin, first: Job | None = None) -> None:
        """Wait until there is room for jobs of this origin or the queue is closed, or until `first` is over."""
        with self._room:
            while self._is_full(origin) and not (self._is_closed or (first and first.done())):
                check_may_wait()
                self._room.wait()

    def remove(self, job: Job) -> bool:
        """Take a job out; return False where it runs, or is over."""
        with self._room:
            if job not in self._waiting:
                return False
            self._waiting.remove(job)
            self._room.notify_all()
            return True

    def ended(self, job: Job) -> None:
        """Handle the end of a job that ran: there is room for another."""
        with self._room:
            self._running.pop(job, None)
            self._room.notify_all()
        self._dispatch()

    def position(self, job: Job) -> int:
        """Return the number of jobs that start before this one if no more come."""
        with self._room:
            return self._waiting.position(job) if job in self._waiting else 0

    @property
    def num_open(self) -> int:
        """Number of jobs that wait or run."""
        with self._room:
            return len(self._waiting) + len(self._running)

    def pause(self, *, is_paused: bool) -> None:
        """Start no jobs, or go on."""
        with self._room:
            self._is_paused = is_paused
        self._dispatch()

    def hold(self, change: int) -> None:
        """Start no jobs while more callers hold the queue than have let go of it: +1 or -1."""
        with self._room:
            self._num_holding += change
        self._dispatch()

    def close(self) -> list[Job]:
        """Accept no more jobs; return the open ones, which the caller must fail."""
        with self._room:
            self._is_closed = True
            jobs = [*self._waiting, *self._running]
            self._waiting.clear()
            self._running.clear()
            self._room.notify_all()
        return jobs

    def check_open(self) -> None:
        """Raise PoolClosed once it is closed."""
        if self._is_closed:
            raise PoolClosed("this engine is closed: connect again")

    def _is_full(self, origin: Origin) -> bool:
        return self._waiting.is_full(origin, self._most_waiting)

    def _dispatch(self) -> None:
        begun = []
        with self._room:
            is_still = self._is_paused or self._num_holding > 0 or self._is_closed
            while self._waiting and not is_still and len(self._running) < self._num_sequences:
                begun.append(job := self._waiting.pop())
                self._running[job] = None
            if begun:
                self._room.notify_all()
        for job in begun:
            self._start(job)
