"""Waiting for what another thread or another process does, and a clock for tests that must not wait."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent import futures
from typing import Any, TypeVar

T = TypeVar("T")


def until(is_so: Callable[[], object], what: str = "it did not come", within_s: float = 60) -> None:
    """Return once it is so; fail with those words after so many seconds."""
    end = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def in_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine, run in another thread: the browser of other tests has a loop in this one.

    Raises TimeoutError after 60 s, also where the loop itself is stuck.
    """
    found = futures.Future[T]()

    def run() -> None:
        try:
            found.set_result(asyncio.run(coroutine))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found.result(60)


class Clock:
    """Clock whose seconds pass only when it is advanced."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
