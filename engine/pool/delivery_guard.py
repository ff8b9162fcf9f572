"""Deadlock guard: threads that deliver workers' messages must not block on the pool, as their own worker's answer would
never arrive."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import EngineError

_here = threading.local()


@contextmanager
def listening() -> Iterator[None]:
    """Mark the current thread as a delivery thread inside the block."""
    _here.delivers = True
    try:
        yield
    finally:
        _here.delivers = False


def check_may_wait() -> None:
    """Raise EngineError in a delivery thread."""
    if getattr(_here, "delivers", False):
        raise EngineError(
            "a callback of a job may not wait for the pool: the thread that calls it brings the answers; "
            "ask from a thread of your own"
        )
