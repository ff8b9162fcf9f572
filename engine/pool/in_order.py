"""Ordered completions: runs many prompts, yields in prompt order, opens no more jobs than the queue has room for."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Protocol

from engine.errors import ConfigError, EngineError, JobTimeout
from engine.jobs import Job
from engine.map_progress import REPORT_EVERY_S, MapTally, OnProgress
from engine.results import Completion
from engine.specs import Origin

Prompt = str | Sequence[int]
BATCH = Origin(lane="batch")
"""Origin of the jobs: many prompts at once leave the turns of those who wait for one answer to these."""
AHEAD = 8
"""Prompts that are taken ahead of the first unfinished one, for each sequence."""


class Queue(Protocol):
    """Bounded queue of jobs."""

    def try_add(self, job: Job) -> bool:
        """Append a job; return False if the queue is full. Raises PoolClosed."""

    def wait_for_room(self, origin: Origin, first: Job | None = None) -> None:
        """Wait until there is room for jobs of this origin or the queue is closed, or until `first` is over."""


def checked_prompts(prompts: Iterable[Prompt]) -> Iterable[Prompt]:
    """Return the prompts. Raises ConfigError for a single one, and for what cannot be iterated over."""
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Iterable):
        raise ConfigError(f"prompts = {prompts!r}: must be a list of prompts; use submit for a single prompt")
    return prompts


def completions(
    prompts: Iterable[Prompt],
    make: Callable[[Prompt], Job],
    queue: Queue,
    *,
    is_failing: bool,
    num_sequences: int,
    progress: OnProgress = False,
) -> Iterator[Completion | EngineError]:
    """Queue the job that `make` creates for each prompt, and yield its completion or error.

    is_failing: raise the first error; otherwise yield errors in place of their completions. At most AHEAD jobs for each
    of `num_sequences` are open. Jobs not yet yielded are cancelled when the iterator closes. Raises PoolClosed, and
    what `progress` raises.
    """
    open_jobs: deque[Job | EngineError] = deque()
    numbers = count()

    def ended(tally: MapTally, most_open: int) -> Iterator[Completion | EngineError]:
        """Yield the first outcomes, waiting for them only where more than `most_open` jobs are open."""
        while open_jobs and (len(open_jobs) > most_open or _is_over(open_jobs[0])):
            while not _is_over(open_jobs[0]):
                tally.report(open_jobs)
                _wait(open_jobs[0], None if tally.is_silent else REPORT_EVERY_S)
            outcome = _outcome(open_jobs.popleft(), next(numbers), is_failing=is_failing)
            tally.count(outcome)
            tally.report(open_jobs)
            yield outcome

    try:
        with MapTally(prompts, progress) as tally:
            for prompt in prompts:
                try:
                    job = make(prompt)
                except EngineError as error:
                    open_jobs.append(error)
                else:
                    while not queue.try_add(job):
                        first = next((one for one in open_jobs if isinstance(one, Job)), None)
                        queue.wait_for_room(job.origin, first)
                        yield from ended(tally, len(open_jobs))
                    open_jobs.append(job)
                yield from ended(tally, AHEAD * num_sequences)
            yield from ended(tally, 0)
    finally:
        for left in open_jobs:
            if isinstance(left, Job):
                left.cancel()


def _is_over(job: Job | EngineError) -> bool:
    return not isinstance(job, Job) or job.done()


def _wait(job: Job | EngineError, timeout: float | None) -> None:
    """Wait until a job is over, or `timeout` seconds."""
    assert isinstance(job, Job)
    with suppress(JobTimeout):
        job.exception(timeout)


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
