"""Two concurrent operations under a controlled schedule: the second runs where the first is interrupted, line by line.

A race between two threads shows only when one is interrupted inside a window of the other. Here the window is chosen:
an operation is stopped before the n-th line of our code that it reaches, the other runs until it has ended or waits for
a lock that the first holds, and then the first continues. Thus every line is interrupted once.
"""

import itertools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar, NamedTuple

PATIENCE_S = 60.0


class Contended:
    """Lock that sets the shared event `is_wanted` when a thread has to wait for it; otherwise like threading.RLock."""

    is_wanted: ClassVar[threading.Event] = threading.Event()

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._lock.acquire(False):
            return True
        if not blocking:
            return False
        self.is_wanted.set()
        return self._lock.acquire(True, timeout)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


class Race(NamedTuple):
    """Two operations, and a check of what must hold after both."""

    first: Callable[[], object]
    second: Callable[[], object]
    check: Callable[[], object]


def at_every_line(make: Callable[[], Race]) -> None:
    """Run a new race for each line at which `first` can be interrupted. Raise what any of the three raises."""
    for line in itertools.count(1):
        race = make()
        if not _interrupted(race.first, race.second, line):
            assert line > 1, "no line was interrupted"
            return
        race.check()


def _interrupted(first: Callable[[], object], second: Callable[[], object], line: int) -> bool:
    """Run `first`, and `second` before its `line`-th line of our code. Return False if it has fewer lines.

    Raise what either of them raises.
    """
    errors: list[BaseException] = []
    moved = Contended.is_wanted = threading.Event()

    def run_second() -> None:
        try:
            second()
        except BaseException as error:
            errors.append(error)
        finally:
            moved.set()

    other = threading.Thread(target=run_second, daemon=True)
    seen: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if not frame.f_globals.get("__name__", "").startswith(("engine.pool", "engine.jobs")):
            return None
        place = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and place not in seen:
            seen.add(place)
            if len(seen) == line:
                other.start()
                assert moved.wait(PATIENCE_S), "the second operation neither ended nor waits for the lock"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        first()
    finally:
        sys.settrace(before)
    if len(seen) < line:
        return False
    other.join(PATIENCE_S)
    assert not other.is_alive(), "the second operation does not end"
    for error in errors:
        raise error
    return True
