"""Jobs, workers and rows made by hand, to test jobs and their queue without a model."""

import threading
import time
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np

from engine.ids import new_id
from engine.jobs import Job
from engine.llama.phase import Phase
from engine.pool import messages as m
from engine.pool.job_queue import JobQueue
from engine.pool.worker_process import WorkerProcess
from engine.process.channel import Message
from engine.process.pulse import Reading
from engine.specs import Origin, Request, Sampling
from engine.step_parts import step_dtype
from engine.vocabulary import Vocabulary
from tests.engine.pool.schedule import Contended

VOCABULARY = Vocabulary(tuple(bytes([97 + n % 26]) for n in range(64)), bytes(64), {}, None, False, False)


def rows(ids: list[int]) -> bytes:
    """Return steps with these ids and no figures, as a worker sends them."""
    table = np.zeros(len(ids), step_dtype(0))
    table["record"]["id"] = ids
    return table.tobytes()


def started(number: int, prompt_ids: list[int]) -> m.Started:
    return m.Started(number, prompt_ids, num_cached=0, seed=1, queue_s=0.0)


def ended(number: int, num_bytes: int, reason: str = "length") -> m.Ended:
    return m.Ended(number, reason, num_bytes, 0.0, 0.0, "", "")


def job_of(prompt: str | list[int] = "a", queue: JobQueue | None = None, origin: Origin | None = None) -> Job:
    """Return a job of this queue, or of none; its lock reports when a thread waits for it."""
    job = Job(
        new_id(),
        prompt,
        Sampling(),
        Request(),
        VOCABULARY,
        cancel=queue.cancel if queue else lambda _job: None,
        position=queue.position if queue else lambda _job: 0,
        origin=origin,
    )
    job._ending = Contended()  # type: ignore[assignment]
    return job


class Worker(WorkerProcess):
    """Worker as the queue sees it: records what it is sent. `jobs` and `texts` may be used only under `lock`."""

    def __init__(self, lock: Contended) -> None:
        self.jobs, self.texts = _guarded(dict, lock), _guarded(OrderedDict, lock)
        self.node = ""
        self.sent: list[Message] = []
        self.ready: Any = SimpleNamespace(load_s=0.0)
        self.ready_at = self.epoch = time.monotonic()
        self.is_alive, self.is_leaving, self.is_lost = True, False, False
        self.is_at(Phase.IDLE)

    @property
    def is_machine_lost(self) -> bool:
        return self.is_lost

    def is_at(self, phase: Phase, number: int = 0) -> None:
        """Set the phase and the job in which the worker was last seen."""
        self.watch: Any = SimpleNamespace(phase=phase, last=Reading(1, 1, phase, number))

    def send(self, message: Message) -> None:
        self.sent.append(message)


class Queue:
    """JobQueue over `num_workers` such workers, with a lock that reports when a thread waits for it."""

    def __init__(self, num_workers: int, *, parallel: int = 2, most_waiting: int = 4) -> None:
        self.lock = Contended()
        self.workers = [Worker(self.lock) for _ in range(num_workers)]
        self.queue = JobQueue(self._alive, parallel=parallel, most_waiting=most_waiting)
        self.queue._lock = self.lock  # type: ignore[assignment]
        self.queue._room = threading.Condition(self.lock)  # type: ignore[arg-type]

    def _alive(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.is_alive]

    def of(self, worker: Worker) -> dict[int, Job]:
        """Return a worker's jobs by number."""
        with self.lock:
            return dict(worker.jobs)


def _guarded(kind: type[dict[Any, Any]], lock: Contended) -> Any:
    """Return an empty dictionary of this type, every use of which requires the lock."""

    def checked(name: str) -> Any:
        method = getattr(kind, name)

        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            assert lock._is_owned(), f"{name} of a worker's state without the queue's lock"
            return method(self, *arguments, **options)

        return call

    used = ("__getitem__", "__setitem__", "__delitem__", "__iter__", "__len__", "__contains__")
    names = [*used, "get", "pop", "popitem", "items", "keys", "values", "clear", "update", "setdefault"]
    more = ["move_to_end"] if hasattr(kind, "move_to_end") else []
    return type("Guarded", (kind,), {name: checked(name) for name in [*names, *more]})()
