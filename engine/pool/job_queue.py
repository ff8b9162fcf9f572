"""Job queue: holds waiting jobs, tracks the jobs that workers have, and assigns jobs to workers with room."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence

from engine.delivery import check_may_wait
from engine.errors import ConfigError, PoolClosed, QueueFull, named_error
from engine.jobs import Job
from engine.llama.phase import Phase
from engine.pool import messages as m
from engine.pool.lanes import Lanes
from engine.pool.routing import best_worker, remember
from engine.pool.worker_process import WorkerProcess
from engine.specs import Origin

COMPUTING = frozenset({Phase.DECODING, Phase.TOKENISING, Phase.PREPARING, Phase.SAMPLING})
EARLY_S = 30.0
"""A worker that dies within this many seconds of being ready, while computing nothing, may be unable to run at all."""


class JobQueue:
    """Queue of at most `most_waiting` jobs in each lane, each waiting for a worker with room.

    workers: returns the live ones.
    Jobs start in the order of `Lanes`; those that a dead worker had start before all others. A job is numbered when a
    worker gets it, and keeps its number.
    num_deaths: consecutive workers that died soon after they were ready, while computing nothing, without any job
    ending in between. All methods may be called from any thread. One lock guards the queue and every worker's `jobs`
    and `texts`; callbacks of jobs run without it.
    """

    def __init__(self, workers: Callable[[], list[WorkerProcess]], *, parallel: int, most_waiting: int) -> None:
        self._workers = workers
        self._parallel, self._most_waiting = parallel, most_waiting
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._waiting: Lanes[Job] = Lanes()
        self._returned: dict[int, Job] = {}
        self._numbers = itertools.count(1)
        self._is_paused = self._is_closed = False
        self.num_deaths = 0

    # interface for callers

    def add(self, job: Job) -> None:
        """Append a job; raises QueueFull, PoolClosed."""
        if not self.try_add(job):
            raise QueueFull(f"the queue is full, {self._most_waiting:,} jobs are waiting: wait, then try again")

    def try_add(self, job: Job) -> bool:
        """Append a job; return False if its lane is full for its client. Raises PoolClosed."""
        with self._lock:
            if self._is_closed:
                raise PoolClosed("this pool is closed: open another")
            if self._is_full(job.origin):
                return False
            self._waiting.add(job, job.origin)
        self.dispatch()
        return True

    def wait_for_room(self, origin: Origin, first: Job | None = None) -> None:
        """Wait until there is room for jobs of this origin or the queue is closed, or until `first` is over."""
        with self._room:
            while self._is_full(origin) and not (self._is_closed or (first and first.done())):
                check_may_wait()
                self._room.wait()

    def pause(self) -> None:
        """Assign no jobs to workers until resume()."""
        with self._lock:
            self._is_paused = True

    def resume(self) -> None:
        """Assign the jobs that pause() held back."""
        with self._lock:
            self._is_paused = False
        self.dispatch()

    def cancel(self, job: Job) -> None:
        """Remove a waiting job and end it, or have its worker stop it."""
        with self._lock:
            job.is_cancelled = True
            returned = next((number for number, other in self._returned.items() if other is job), None)
            if returned is not None:
                del self._returned[returned]
            elif job in self._waiting:
                self._waiting.remove(job)
            else:
                for worker, number, other in self._given():
                    if other is job:
                        worker.send(m.Cancel(number))
                return
        job.on_cancelled()
        self._wake()

    def position(self, job: Job) -> int:
        """Return the number of jobs that start before this one if no more come."""
        with self._lock:
            given = [(number, other) for _worker, number, other in self._given() if not other.is_started]
            numbered = [*given, *self._returned.items()]
            if job in self._waiting:
                return len(numbered) + self._waiting.position(job)
        mine = next((number for number, other in numbered if other is job), 0)
        return sum(number < mine for number, _other in numbered)

    @property
    def num_open(self) -> int:
        """Number of jobs that wait or run."""
        with self._lock:
            return len(self._waiting) + len(self._returned) + len(self._given())

    def of(self, worker: WorkerProcess) -> list[Job]:
        """Return the jobs that a worker currently has."""
        with self._lock:
            return list(worker.jobs.values())

    def close(self) -> list[Job]:
        """Accept no more jobs; return the open ones, which the caller must fail."""
        with self._lock:
            if self._is_closed:
                return []
            self._is_closed = True
            jobs = [*self._returned.values(), *self._waiting]
            self._returned.clear()
            self._waiting.clear()
            for worker in self._workers():
                jobs.extend(worker.jobs.values())
                worker.jobs.clear()
            self._room.notify_all()
        return jobs

    def _given(self) -> list[tuple[WorkerProcess, int, Job]]:
        """Return the jobs that workers have, with their numbers."""
        return [(worker, number, job) for worker in self._workers() for number, job in worker.jobs.items()]

    def _is_full(self, origin: Origin) -> bool:
        return self._waiting.is_full(origin, self._most_waiting)

    def _wake(self) -> None:
        """Have wait_for_room check its condition again."""
        with self._lock:
            self._room.notify_all()

    # to the workers and back

    def dispatch(self) -> None:
        """Assign waiting jobs to workers with room: a few more jobs than sequences, so that the next one starts as soon
        as a sequence is free."""
        most = self._parallel + max(1, self._parallel // 4)
        with self._lock:
            while (self._returned or self._waiting) and not self._is_paused:
                room = [one for one in self._workers() if len(one.jobs) < most and not one.is_leaving]
                if not room:
                    break
                returned = min(self._returned, default=None)
                job = self._waiting.first() if returned is None else self._returned[returned]
                reusable = job.prompt if job.request.reuse_prefix else []
                worker = best_worker(room, reusable, job.vocabulary, self._parallel)
                if returned is None:
                    number = next(self._numbers)
                    self._waiting.pop()
                else:
                    number = returned
                    del self._returned[number]
                worker.jobs[number] = job
                worker.send(m.AddRequest(number, job.sent, job.compiled, job.request, job.submitted - worker.epoch))
            self._room.notify_all()

    def on_decoded(self, worker: WorkerProcess, message: m.Decoded) -> None:
        """Hand a worker's new steps to their jobs."""
        for steps in message.steps:
            with self._lock:
                job = worker.jobs.get(steps.job)
            if job is not None:
                job.on_steps(steps.rows, is_prompt=steps.is_prompt)

    def on_started(self, worker: WorkerProcess, message: m.Started) -> None:
        """Handle a worker starting a job."""
        with self._lock:
            job = worker.jobs.get(message.job)
        if job is not None:
            self._remember(worker, job, message.prompt_ids)
            job.on_started(
                message.prompt_ids,
                num_cached=message.num_cached,
                seed=message.seed,
                queue_s=message.queue_s,
                load_s=worker.ready.load_s,
                node=worker.node,
            )

    def on_ended(self, worker: WorkerProcess, message: m.Ended) -> None:
        """Handle a worker finishing a job: it has room for another."""
        with self._lock:
            job = worker.jobs.get(message.job)
        if job is not None:
            self._remember(worker, job, [*(job.prompt_ids or ()), *job.steps.ids])
        with self._lock:
            job = worker.jobs.pop(message.job, None)
            self.num_deaths = 0
        if job is not None:
            _end(job, message)
        self.dispatch()

    def take_back(self, worker: WorkerProcess) -> list[Job]:
        """Requeue a dead worker's jobs without output (once each, before all others); return the others, which
        fail. A job that the worker was computing is not requeued; cancelled ones end as cancelled. Where the whole
        machine was lost, its jobs without output are requeued however often that happens."""
        is_blamed = not worker.is_machine_lost
        with self._lock:
            if is_blamed and not worker.is_leaving and worker.watch.phase not in COMPUTING:
                is_early = time.monotonic() - worker.ready_at < EARLY_S
                self.num_deaths = self.num_deaths + 1 if is_early else 0
            had = list(worker.jobs.items())
            worker.jobs.clear()
            cancelled: list[Job] = []
            lost: list[Job] = []
            for number, job in had:
                if job.is_cancelled:
                    cancelled.append(job)
                elif (
                    self._is_closed
                    or len(job.steps)
                    or (is_blamed and (job.is_suspect or _was_computed(worker, number, job)))
                ):
                    lost.append(job)
                else:
                    job.wait_again(is_suspect=is_blamed)
                    self._returned[number] = job
        for job in cancelled:
            job.on_cancelled()
        return lost

    def remove_from(self, node: str) -> None:
        """Give the worker of a node with the fewest jobs no more; it ends after its last one.

        Raises ConfigError where the node has none, or for the last worker.
        """
        with self._lock:
            staying = [worker for worker in self._workers() if not worker.is_leaving]
            there = [worker for worker in staying if worker.node == node]
            if not there:
                raise ConfigError(f"node {node!r} has no worker of this pool")
            if len(staying) == 1:
                raise ConfigError("this is the last worker of the pool: close the pool instead")
            leaving = min(there, key=lambda worker: len(worker.jobs))
            leaving.is_leaving = True
        self.end_if_leaving(leaving)

    def end_if_leaving(self, worker: WorkerProcess) -> None:
        """End a worker that gets no more jobs once it has none."""
        with self._lock:
            is_done = worker.is_leaving and not worker.jobs
        if is_done:
            worker.hang_up()

    def blamed(self, worker: WorkerProcess) -> Job | None:
        """Return the job that a worker is working on; None between jobs, while it computes all of them together, and
        where its machine was lost."""
        with self._lock:
            return None if worker.is_machine_lost else worker.jobs.get(worker.watch.last.job)

    def _remember(self, worker: WorkerProcess, job: Job, ids: Sequence[int]) -> None:
        """Note the text that the worker's KV cache now holds, for routing by prefix."""
        if len(self._workers()) == 1:
            return
        text = job.vocabulary.join(tuple(ids))
        with self._lock:
            remember(worker, job.id, text, len(ids), self._parallel)


def _end(job: Job, message: m.Ended) -> None:
    """Complete a job, or end it with the error that its worker reports."""
    if message.error:
        job.fail(named_error(message.error, message.text))
        return
    job.on_ended(
        message.finish_reason,
        message.text_bytes,
        prefill_s=message.prefill_s,
        decode_s=message.decode_s,
        threads=message.threads,
        threads_batch=message.threads_batch,
    )


def _was_computed(worker: WorkerProcess, number: int, job: Job) -> bool:
    """Return True for the job that a worker was working on; while it decodes, for all jobs that it had started."""
    at = worker.watch.last
    return number == at.job if at.job else job.is_started and worker.watch.phase == Phase.DECODING
