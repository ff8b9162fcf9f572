"""What has the machine to itself while it is measured in the background: one run at a time, with progress and Stop."""

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from engine.errors import ConfigError, EngineError, ModelError

_log = logging.getLogger(__name__)


class Run(ABC):
    """One thing being measured, or measured. Any thread may look at it, and stop it.

    share: how much is done, 0 to 1. error: why nothing came of it. what: its name at the start of a sentence.
    """

    what: str

    def __init__(self) -> None:
        self.share = 0.0
        self.error: EngineError | None = None
        self.is_stopped = False
        self._began = time.monotonic()
        self._kill: Callable[[], object] = lambda: None
        self._lock, self._over = threading.Lock(), threading.Event()

    @property
    def is_running(self) -> bool:
        """False once it is over, in whatever way."""
        return not self._over.is_set()

    @property
    def left_s(self) -> float:
        """Seconds until it is over, at the pace so far; NaN where that is not known."""
        return (time.monotonic() - self._began) * (1 / self.share - 1) if self.share else math.nan

    def stop(self) -> None:
        """End it, also in the middle of a load; returns at once."""
        with self._lock:
            self.is_stopped = True
            self._kill()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end."""
        self._over.wait(timeout_s)

    def measure(self) -> None:
        """Do it: blocks until it is measured, or `error` says why it is not."""
        try:
            self._measure()
        except EngineError as error:
            self.error = error
        except Exception as defect:
            _log.exception("%s could not be measured", self.what)
            self.error = ModelError(f"{self.what} could not be measured, through a defect of this program: {defect!r}")

    def end(self) -> None:
        """It is over, and the machine is free."""
        self._over.set()

    @abstractmethod
    def _measure(self) -> None:
        """Measure. May raise anything."""

    def _ends_by(self, kill: Callable[[], object]) -> None:
        """From now on `stop` calls this."""
        with self._lock:
            self._kill = kill
            if self.is_stopped:
                kill()


R = TypeVar("R", bound=Run)


class AloneSlot(ABC, Generic[R]):
    """Measures one run at a time. Any thread may call it. `busy_with` names what would disturb, else empty."""

    def __init__(self, busy_with: Callable[[], str]) -> None:
        self._busy_with = busy_with
        self._lock = threading.Lock()
        self._current: R | None = None
        self._is_closed = False

    @property
    def running(self) -> R | None:
        """What is being measured, if anything is."""
        run = self._current
        return run if run is not None and run.is_running else None

    @property
    @abstractmethod
    def doing(self) -> str:
        """What is being measured, in words; empty where nothing is."""

    def stop(self) -> None:
        """End what is being measured; nothing happens where nothing is."""
        run = self.running
        if run is not None:
            run.stop()

    def close(self) -> None:
        """Stop, and wait for the end."""
        with self._lock:
            self._is_closed = True
        run = self.running
        if run is not None:
            run.stop()
            run.wait()

    def _begin(self, run: R) -> None:
        """Measure in the background. Raises ConfigError where that would be disturbed or would disturb."""
        with self._lock:
            if self._is_closed:
                return
            busy = self._busy()
            if busy:
                raise ConfigError(f"{busy} is not done yet and would be measured too. Wait for it, or stop it.")
            self._take(run)
        threading.Thread(target=self._do, args=(run,), name="logitbench-measuring", daemon=True).start()

    def _busy(self) -> str:
        return self.doing or self._busy_with()

    def _take(self, run: R) -> None:
        self._current = run

    def _do(self, run: R) -> None:
        try:
            self._measure(run)
        finally:
            run.end()

    @abstractmethod
    def _measure(self, run: R) -> None:
        """Make room for the run, and measure it."""
