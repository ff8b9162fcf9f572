"""Delivery threads: those on which an engine calls back, which must not wait for it."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.errors import EngineError

_log = logging.getLogger(__name__)
_here = threading.local()


@contextmanager
def listening() -> Iterator[None]:
    """Mark the current thread as one that delivers to jobs inside the block.

    Such a thread must not wait for the engine: the answer that it waits for would never be delivered.
    """
    _here.delivers = True
    try:
        yield
    finally:
        _here.delivers = False


def check_may_wait() -> None:
    """Raise EngineError in a delivery thread."""
    if getattr(_here, "delivers", False):
        raise EngineError(
            "a job's callback must not wait for the engine: it runs on the thread that delivers the answers; "
            "call the engine from another thread"
        )


def call_back(callback: Callable[..., object], name: str, *args: object) -> None:
    """Call a function of the package's user, logging what it raises under `name`.

    That includes SystemExit, which would end a delivery thread, and with it every later answer; in the main thread
    SystemExit and KeyboardInterrupt are raised.
    """
    try:
        callback(*args)
    except BaseException as error:
        if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
            raise
        _log.exception("%s failed", name)
