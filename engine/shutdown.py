"""Bounded shutdown: after a signal this process ends within seconds, whatever still runs."""

import atexit
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType

WITHIN_S = 4.5
"""Maximum seconds from the signal to the end of the process."""
LINGER_S = 0.5
"""Seconds left to the process after everything is closed, for its remaining work before it ends."""


class Shutdown:
    """Signal handling with a deadline: the first signal runs the previous handler, the second ends the process at once.

    close: called on its own thread at the first signal; the process ends soon after it returns, with the status
    128 + signal. Child processes end with their parent. Install it on the main thread.
    """

    def __init__(self, close: Callable[[], object] | None = None) -> None:
        self._close = close
        self._number = 0
        atexit.register(self._end_quietly)

    @property
    def is_begun(self) -> bool:
        """True from the first signal on."""
        return self._number != 0

    def install(self, *numbers: signal.Signals) -> None:
        """Handle these signals; does nothing outside the main thread, which alone may install handlers."""
        if threading.current_thread() is threading.main_thread():
            for number in numbers:
                signal.signal(number, self._handler(signal.getsignal(number)))

    def _handler(self, before: object) -> Callable[[int, FrameType | None], None]:
        def handle(number: int, frame: FrameType | None) -> None:
            if self.is_begun:
                os._exit(128 + number)
            self._number = number
            # A C thread, which needs no interpreter, ends the process after dumping the stack of each thread.
            said = sys.__stderr__ or sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - kept open until the end
            faulthandler.dump_traceback_later(WITHIN_S, exit=True, file=said)
            if self._close is not None:
                threading.Thread(target=self._end, name="logitbench-shutdown", daemon=True).start()
            if callable(before):
                before(number, frame)

        return handle

    def _end(self) -> None:
        assert self._close is not None
        self._close()
        time.sleep(LINGER_S)
        os._exit(128 + self._number)

    def _end_quietly(self) -> None:
        """End the process without tearing down the interpreter: DuckDB's module would report each of its own objects
        that is still referenced as a leak."""
        if self.is_begun:
            for stream in (sys.stdout, sys.stderr):
                with suppress(AttributeError, OSError, ValueError):  # closed, or its reader is gone
                    stream.flush()
            os._exit(128 + self._number)


def close_all(closes: Iterable[Callable[[], object]], within_s: float) -> list[str]:
    """Call all of these concurrently on daemon threads and wait; return the names of those not finished in time."""
    threads = [threading.Thread(target=close, name=close.__qualname__, daemon=True) for close in closes]
    for thread in threads:
        thread.start()
    end = time.monotonic() + within_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return [thread.name for thread in threads if thread.is_alive()]
