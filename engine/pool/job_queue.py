"""The jobs of a pool: those that wait, those that workers have, and how each comes to its worker."""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter

from engine.errors import PoolClosed, QueueFull
from engine.llama.phase import Phase
from engine.pool import messages as m
from engine.pool.job import Job
from engine.pool.listening import check_may_wait
from engine.pool.member import Member
from engine.pool.routing import best_member, remember

COMPUTING = frozenset({Phase.DECODING, Phase.TOKENISING, Phase.PREPARING, Phase.SAMPLING})
EARLY_S = 30.0
"""A worker that dies within so many seconds of being ready, with nothing to compute, may not be able to live."""


class JobQueue:
    """At most `most_waiting` jobs wait, each for a worker with room; `members` gives the workers that are alive.

    num_deaths: workers that died soon after they were ready, one after the other, while nothing was computed and no job
    ended. All methods may be called from any thread. One lock guards the queue and, of every member, `jobs` and
    `texts`; what jobs call back runs without it.
    """

    def __init__(
        self, members: Callable[[], list[Member]], *, num_workers: int, parallel: int, most_waiting: int
    ) -> None:
        self._members = members
        self._num_workers, self._parallel, self._most_waiting = num_workers, parallel, most_waiting
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._waiting: deque[tuple[int, Job]] = deque()
        self._numbers = itertools.count(1)
        self._is_paused = self._is_closed = False
        self.num_deaths = 0

    # what callers want

    def add(self, job: Job) -> None:
        """Put a job at the end; raises QueueFull, PoolClosed."""
        if not self.try_add(job):
            raise QueueFull(f"{self._most_waiting:,} jobs wait already, no more are allowed: wait, then try again")

    def try_add(self, job: Job) -> bool:
        """Put a job at the end; False where no more may wait. Raises PoolClosed."""
        with self._lock:
            if self._is_closed:
                raise PoolClosed("this pool is closed: open another")
            if len(self._waiting) >= self._most_waiting:
                return False
            self._waiting.append((next(self._numbers), job))
        self.dispatch()
        return True

    def wait_for_room(self, first: Job | None = None) -> None:
        """Return when another job may wait, or never can again, or when `first` is over."""
        with self._room:
            while len(self._waiting) >= self._most_waiting and not (self._is_closed or (first and first.done())):
                check_may_wait()
                self._room.wait()

    def pause(self) -> None:
        """Give out no job until resume()."""
        with self._lock:
            self._is_paused = True

    def resume(self) -> None:
        """Give out what pause() kept."""
        with self._lock:
            self._is_paused = False
        self.dispatch()

    def cancel(self, job: Job) -> None:
        """Take a waiting job out and end it, or have its worker stop it."""
        with self._lock:
            job.is_cancelled = True
            waiting = next((entry for entry in self._waiting if entry[1] is job), None)
            if waiting is None:
                for member, number, other in self._given():
                    if other is job:
                        member.send(m.Cancel(number))
                return
            self._waiting.remove(waiting)
        job.on_cancelled()
        self._wake()

    def position(self, job: Job) -> int:
        """Jobs that start before this one."""
        with self._lock:
            given = [(number, other) for _member, number, other in self._given() if not other.is_started]
            entries = [*self._waiting, *given]
        mine = next((number for number, other in entries if other is job), 0)
        return sum(number < mine for number, _other in entries)

    @property
    def num_open(self) -> int:
        """Jobs that wait or run."""
        with self._lock:
            return len(self._waiting) + len(self._given())

    def of(self, member: Member) -> list[Job]:
        """The jobs that a worker has at this moment."""
        with self._lock:
            return list(member.jobs.values())

    def close(self) -> list[Job]:
        """Take no more jobs; gives those that were open, for their last word."""
        with self._lock:
            if self._is_closed:
                return []
            self._is_closed = True
            jobs = [job for _number, job in self._waiting]
            self._waiting.clear()
            for member in self._members():
                jobs.extend(member.jobs.values())
                member.jobs.clear()
            self._room.notify_all()
        return jobs

    def _given(self) -> list[tuple[Member, int, Job]]:
        """The jobs that workers have, with their numbers."""
        return [(member, number, job) for member in self._members() for number, job in member.jobs.items()]

    def _wake(self) -> None:
        """Have wait_for_room look again."""
        with self._lock:
            self._room.notify_all()

    # to the workers and back

    def dispatch(self) -> None:
        """Give waiting jobs to workers that have room for them: a few more than sequences, to take the next free ones
        at once."""
        most = self._parallel + max(1, self._parallel // 4)
        with self._lock:
            while self._waiting and not self._is_paused:
                room = [member for member in self._members() if len(member.jobs) < most]
                if not room:
                    break
                number, job = self._waiting[0]
                reusable = job.prompt if job.request.reuse_prefix else []
                member = best_member(room, reusable, job.vocabulary, self._parallel)
                self._waiting.popleft()
                member.jobs[number] = job
                member.send(m.Start(number, job.sent, job.compiled, job.request, job.submitted))
            self._room.notify_all()

    def on_decoded(self, member: Member, message: m.Decoded) -> None:
        """A worker has new steps of its jobs."""
        with self._lock:
            jobs = [member.jobs.get(steps.job) for steps in message.steps]
        for job, steps in zip(jobs, message.steps, strict=True):
            if job is not None:
                job.on_steps(steps)

    def on_started(self, member: Member, message: m.Started) -> None:
        """A worker has begun a job."""
        with self._lock:
            job = member.jobs.get(message.job)
        if job is not None:
            self._remember(member, job, message.prompt_ids)
            job.on_started(message, member.ready.load_s)

    def on_ended(self, member: Member, message: m.Ended) -> None:
        """A worker is through with a job, and has room for another."""
        with self._lock:
            job = member.jobs.get(message.job)
        if job is not None:
            self._remember(member, job, [*(job.prompt_ids or ()), *job.steps.ids])
        with self._lock:
            job = member.jobs.pop(message.job, None)
            self.num_deaths = 0
        if job is not None:
            job.on_ended(message)
        self.dispatch()

    def take_back(self, member: Member) -> list[Job]:
        """The worker is dead: its jobs without a token wait again, once each, as long ago as they came, but for those
        that it was computing; gives the others, now lost. Those that were cancelled end as that."""
        with self._lock:
            if member.watch.phase not in COMPUTING:
                is_early = time.monotonic() - member.ready_at < EARLY_S
                self.num_deaths = self.num_deaths + 1 if is_early else 0
            had = list(member.jobs.items())
            member.jobs.clear()
            cancelled: list[Job] = []
            lost: list[Job] = []
            for number, job in had:
                if job.is_cancelled:
                    cancelled.append(job)
                elif self._is_closed or job.is_retried or len(job.steps) or _was_computed(member, number, job):
                    lost.append(job)
                else:
                    job.wait_again()
                    self._waiting.append((number, job))
            self._waiting = deque(sorted(self._waiting, key=itemgetter(0)))
        for job in cancelled:
            job.on_cancelled()
        return lost

    def blamed(self, member: Member) -> Job | None:
        """The one job that a worker is at, where that is one; None between jobs and where it computes all together."""
        with self._lock:
            return member.jobs.get(member.watch.last.job)

    def _remember(self, member: Member, job: Job, ids: Sequence[int]) -> None:
        """Note what the member's caches hold now."""
        if self._num_workers == 1:
            return
        text = job.vocabulary.join(tuple(ids))
        with self._lock:
            remember(member, job.id, text, len(ids), self._parallel)


def _was_computed(member: Member, number: int, job: Job) -> bool:
    """True for the job that a worker was at, and for all that it had begun where it computes them together."""
    at = member.watch.last
    return number == at.job if at.job else job.is_started and member.watch.phase == Phase.DECODING
