"""Waiting for what another thread or another process does."""

import time
from collections.abc import Callable


def until(is_so: Callable[[], object], what: str = "it did not come", within_s: float = 60) -> None:
    """Return once it is so; fail with those words after so many seconds."""
    end = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.005)
