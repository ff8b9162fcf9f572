"""A thread beside the page that another thread may wait for."""

import threading
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")


class SideThread:
    """Runs one piece of work after another, each in a daemon thread of its own.

    `lock` is its owner's, who holds it from deciding on the work until it has begun: so nobody who waits misses it.
    """

    def __init__(self, name: str, lock: threading.Lock) -> None:
        self._name, self._lock = name, lock
        self._thread: threading.Thread | None = None

    def begin(self, work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Begin `work`, with the lock held and the work before over."""
        self._thread = threading.Thread(target=work, args=args, kwargs=kwargs, name=self._name, daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait, without the lock, for the end of what was begun last, at most so many seconds."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
