"""One input for one parser, within bounds of time and memory: only an EngineError may come of it, or an ApiError that
finds the fault with the request."""

import contextlib
import resource
import signal
import sys
import time
import traceback
import tracemalloc
from collections.abc import Iterator
from typing import NamedTuple

from engine.api.openai.errors import ApiError
from engine.errors import EngineError
from tests.fuzz.parsers import PARSERS, input_of

MOST_S, MOST_WAIT_S = 5.0, 60.0
"""Of processor time, which another program on the machine does not take; and of waiting for a child."""

MOST_BYTES = 1 << 30
LONGEST_MESSAGE = 2_000
MEASURED = 50
"""Every so many inputs the memory is traced, which takes several times as long."""


class Failure(NamedTuple):
    """An input that broke a promise, and which."""

    name: str
    number: int
    what: str
    content: bytes


class TooSlow(BaseException):
    """The parser took more than MOST_S."""


def tried(name: str, seed: int, number: int, *, is_traced: bool = False) -> Failure | None:
    """What is wrong with a parser at one input; None for nothing."""
    content = input_of(name, seed, number)
    began = time.process_time()
    if is_traced:
        tracemalloc.start()
    try:
        with _alarm(5 if is_traced else 1):
            PARSERS[name].parse(content)
        what = ""
    except (EngineError, ApiError) as error:
        what = "" if len(str(error)) <= LONGEST_MESSAGE else f"a message of {len(str(error)):,} characters"
        if isinstance(error, ApiError) and error.status >= 500:
            what = f"status {error.status}: {str(error)[:200]}"
    except TooSlow:
        what = f"more than {MOST_S:g} s"
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {str(error)[:200]} ({frame.filename.rpartition('/')[2]}:{frame.lineno})"
    finally:
        peak = tracemalloc.get_traced_memory()[1] if is_traced else 0
        tracemalloc.stop()
    if not what and peak > MOST_BYTES:
        what = f"{peak:,} bytes of memory"
    if not what and not is_traced and time.process_time() - began > MOST_S:
        what = "more than 5 s, in C"
    return Failure(name, number, what, content) if what else None


def bound_memory() -> None:
    """Have this process fail with MemoryError at three times MOST_BYTES above what it has now, where that holds."""
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (now + 3 * MOST_BYTES, hard))


@contextlib.contextmanager
def _alarm(times: int) -> Iterator[None]:
    """Raise TooSlow after so many times MOST_S, where Python runs then; what C does is measured when it comes back."""

    def ring(_signal: int, _frame: object) -> None:
        raise TooSlow

    before = [(each, signal.signal(each, ring)) for each in (signal.SIGALRM, signal.SIGPROF)]
    signal.setitimer(signal.ITIMER_REAL, MOST_WAIT_S * times)
    signal.setitimer(signal.ITIMER_PROF, MOST_S * times)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for each, handler in before:
            signal.signal(each, handler)
