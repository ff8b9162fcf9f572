"""Arrivals: the steps of a job in an event loop, in batches of those that arrived together, and its end."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from engine.jobs import Job
from engine.results import Completion

MOST_AT_ONCE = 32
"""Steps of a batch, after which the event loop runs its other tasks."""


async def arrivals(job: Job) -> AsyncGenerator[range, None]:
    """Yield the indices of the steps of a job in batches as they arrive, at most MOST_AT_ONCE in each, to its end.

    Raises the EngineError that ended it.
    """
    job.check_may_wait()
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop was closed while the job goes on
            loop.call_soon_threadsafe(changed.set)

    remove, index = job.add_listener(wake), 0
    try:
        while True:
            changed.clear()
            while index < (num := len(job.steps)):
                here = range(index, min(num, index + MOST_AT_ONCE))
                yield here
                index = here.stop
                if index < num:
                    await asyncio.sleep(0)
            if job.done() and index >= len(job.steps):
                break
            await changed.wait()
    finally:
        remove()
    error = job.exception()
    if error is not None:
        raise error.bare()


async def ended(job: Job) -> Completion:
    """Return the Completion of a job once it is over. Cancelling the task that waits for it cancels the job.

    Raises the EngineError that ended it.
    """
    job.check_may_wait()
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not over.done():
            over.set_result(None)

    def wake(_job: Job) -> None:
        with suppress(RuntimeError):  # the loop was closed while the job goes on
            loop.call_soon_threadsafe(finish)

    job.add_done_callback(wake)
    try:
        await over
    except asyncio.CancelledError:
        job.cancel()
        raise
    return job.result()
