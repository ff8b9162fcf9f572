"""Hostile requests to a pool while a neighbour streams: what must hold whatever they contain."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from engine import ConfigError, Pool
from tests.conftest import ENDLESS
from tests.waiting import until

MAX_GROWTH = 50 << 20
TIME = "took longer than 2 s"
"""Error text of the limit that is reached first on a busy machine."""
CPU = "SIGXCPU"
"""The same of the limit on processor time, which is as long and may come first on an idle one."""
HANG_S = 60
"""Far more than the sandbox's two seconds, even on a busy machine."""


@contextmanager
def streaming_neighbour(pool: Pool) -> Iterator[None]:
    """Stream a job during the block; afterwards it must still stream and be cancellable, with no worker replaced."""
    neighbour = pool.submit("Once upon a time", ENDLESS, max_tokens=1 << 20)
    next(iter(neighbour))
    pids = [worker.pid for worker in pool.workers()]
    memory = psutil.Process().memory_info().rss
    yield
    num = len(neighbour.steps)
    until(lambda: len(neighbour.steps) > num + 3, "the neighbour's tokens do not come any more")
    assert neighbour.cancel()
    assert neighbour.result(HANG_S).finish_reason == "cancelled"
    assert [worker.pid for worker in pool.workers()] == pids
    assert psutil.Process().memory_info().rss < memory + MAX_GROWTH


def refusal(pool: Pool, ask: Callable[[], object]) -> str:
    """Return the text of the ConfigError that `ask` raises while a neighbour streams, or "" if it raises none."""
    said: list[str] = []

    def run() -> None:
        try:
            ask()
            said.append("")
        except ConfigError as error:
            said.append(str(error))

    with streaming_neighbour(pool):
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(HANG_S)
        assert said, "it neither ended nor failed with a ConfigError"
    return said[0]
