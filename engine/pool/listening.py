"""Which threads deliver what workers say: one that waited for its own worker would wait forever."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import EngineError

_here = threading.local()


@contextmanager
def listening() -> Iterator[None]:
    """Inside the block this thread is one of them."""
    _here.delivers = True
    try:
        yield
    finally:
        _here.delivers = False


def check_may_wait() -> None:
    """Raise EngineError in a thread that delivers."""
    if getattr(_here, "delivers", False):
        raise EngineError(
            "a callback of a job may not wait for the pool: the thread that calls it brings the answers; "
            "ask from a thread of your own"
        )
