"""Ordered completions: runs many prompts, yields in prompt order, opens no more jobs than the queue has room for."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Protocol

from engine.errors import EngineError
from engine.jobs import Job
from engine.results import Completion

Prompt = str | Sequence[int]


class Queue(Protocol):
    """Bounded queue of jobs."""

    def try_add(self, job: Job) -> bool:
        """Append a job; return False if the queue is full. Raises PoolClosed."""

    def wait_for_room(self, first: Job | None = None) -> None:
        """Wait until the queue has room or is closed, or until `first` is over."""


def completions(
    prompts: Iterable[Prompt], make: Callable[[Prompt], Job], queue: Queue, *, is_failing: bool
) -> Iterator[Completion | EngineError]:
    """Queue the job that `make` creates for each prompt, and yield its completion or error.

    is_failing: raise the first error; otherwise yield errors in place of their completions. Jobs not yet yielded are
    cancelled when the iterator closes. Raises PoolClosed.
    """
    open_jobs: deque[Job | EngineError] = deque()
    numbers = count()

    def ended(*, waits: bool = False) -> Iterator[Completion | EngineError]:
        while open_jobs and (waits or not isinstance(open_jobs[0], Job) or open_jobs[0].done()):
            yield _outcome(open_jobs.popleft(), next(numbers), is_failing=is_failing)

    try:
        for prompt in prompts:
            try:
                job = make(prompt)
            except EngineError as error:
                open_jobs.append(error)
            else:
                while not queue.try_add(job):
                    first = next((one for one in open_jobs if isinstance(one, Job)), None)
                    queue.wait_for_room(first)
                    yield from ended()
                open_jobs.append(job)
            yield from ended()
        yield from ended(waits=True)
    finally:
        for left in open_jobs:
            if isinstance(left, Job):
                left.cancel()


def _outcome(job: Job | EngineError, index: int, *, is_failing: bool) -> Completion | EngineError:
    """Return the completion or error of prompt `index`; an error names the prompt, and is raised if `is_failing`."""
    error = job.exception() if isinstance(job, Job) else job
    if error is None:
        assert isinstance(job, Job)
        return job.result()
    named = type(error)(f"prompts[{index}]: {error}")
    named.__cause__ = error
    if is_failing:
        raise named
    return named
