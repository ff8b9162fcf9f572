"""One piece of work that takes seconds or minutes, done beside whatever else runs: its progress, and Stop."""

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from engine.errors import ConfigError, EngineError
from engine.workbench.side_thread import SideThread

_log = logging.getLogger(__name__)

Tell = Callable[[float], None]
"""Hears how far work is, 0 to 1; where a person wants it ended it raises Stopped, and the work undoes what it began."""


class Stopped(EngineError):
    """A person ended it."""


class Task(NamedTuple):
    """What is being done, how far it is, 0 to 1, and about how long it takes still, infinite where not known."""

    name: str
    share: float = 0.0
    left_s: float = math.inf
    is_stopped: bool = False


class Background:
    """Does one piece of work at a time. Any thread may call it; `error` is the failure of the last one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = SideThread("logitbench-background", self._lock)
        self._task: Task | None = None
        self._is_stopping = False
        self.error: EngineError | None = None

    @property
    def task(self) -> Task | None:
        """What is being done; None for nothing."""
        task = self._task
        return task and task._replace(is_stopped=self._is_stopping)

    @property
    def doing(self) -> str:
        """What is being done, in words; empty for nothing."""
        task = self._task
        return task.name if task else ""

    def start(self, name: str, work: Callable[[Tell], object]) -> None:
        """Begin `work`, which is given what to tell its progress to. Raises ConfigError while another is being done."""
        with self._lock:
            if self._task is not None:
                raise ConfigError(f"{self._task.name} is not done yet. Wait for it, then try again.")
            self._task, self.error, self._is_stopping = Task(name), None, False
            self._thread.begin(self._do, name, work)

    def stop(self) -> None:
        """End it when it next tells its progress; `error` is Stopped then. Nothing happens where nothing is done."""
        self._is_stopping = True

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until nothing is done."""
        self._thread.wait(timeout_s)

    def _do(self, name: str, work: Callable[[Tell], object]) -> None:
        began = time.monotonic()

        def tell(share: float) -> None:
            if self._is_stopping:
                raise Stopped(f"{name} was stopped.")
            share = min(max(share, 0.0), 1.0)
            gone_s = time.monotonic() - began
            self._task = Task(name, share, gone_s * (1 - share) / share if share else math.inf)

        try:
            work(tell)
        except EngineError as error:
            self.error = error
        except Exception as defect:
            _log.exception("%s failed", name)
            self.error = EngineError(f"{name} failed, through a defect of this program: {defect!r}")
        finally:
            self._task = None
