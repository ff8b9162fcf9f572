"""Load timeout: limits the time of a model load, which another thread can also end at once."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from engine.errors import BenchTimeout, EngineError, PoolClosed

LEAST_S = 120.0
LEAST_BYTES_PER_S = 20e6
"""Slower than any disk or network that a model would be loaded from."""

FILE_HINT = "its file or the process hangs. Check that the disk responds, then run again"


def patience_s(num_bytes: int) -> float:
    """Return the seconds after which a load of `num_bytes` counts as hanging."""
    return LEAST_S + num_bytes / LEAST_BYTES_PER_S


class LoadTimeout:
    """Context manager around one load; raises BenchTimeout after `timeout_s` seconds, PoolClosed after stop().

    The loading code first calls begins() with a function that ends the load from any thread. hint: why a load may take
    too long, and what to do.
    """

    def __init__(self, timeout_s: float = LEAST_S, hint: str = FILE_HINT) -> None:
        self._timeout_s, self._hint = timeout_s, hint
        self._lock = threading.Lock()
        self._end: Callable[[], object] | None = None
        self._reason: EngineError | None = None

    def __enter__(self) -> Self:
        self._timer = threading.Timer(self._timeout_s, self._time_out)
        self._timer.daemon = True
        self._timer.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._end = None
        if self._reason is not None:
            raise self._reason.bare() from error

    def begins(self, end: Callable[[], object]) -> None:
        """Register `end`, which is called once if the load has to end, immediately if it already has to."""
        with self._lock:
            self._end = end
            is_over = self._reason is not None
        if is_over:
            end()

    def stop(self, reason: str = "the run was stopped while a model was loading") -> None:
        """End the load, now or as soon as it begins; PoolClosed has this reason."""
        self._give_up(PoolClosed(reason))

    def _time_out(self) -> None:
        self._give_up(BenchTimeout(f"the model did not load within {self._timeout_s:,.0f} s: {self._hint}"))

    def _give_up(self, reason: EngineError) -> None:
        with self._lock:
            if self._reason is not None:
                return
            self._reason, end = reason, self._end
        if end is not None:
            end()
