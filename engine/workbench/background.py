"""One piece of work that takes seconds or minutes, done beside whatever else runs, with its progress."""

import threading
from collections.abc import Callable
from typing import NamedTuple

from engine.errors import ConfigError, EngineError


class Task(NamedTuple):
    """What is being done, and how far it is, 0 to 1."""

    name: str
    share: float


class Background:
    """Does one piece of work at a time. Any thread may call it; `error` is the failure of the last one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.task: Task | None = None
        self.error: EngineError | None = None

    def start(self, name: str, work: Callable[[Callable[[float], None]], object]) -> None:
        """Begin `work`, which is given what to tell its progress to. Raises ConfigError while another is being done."""
        with self._lock:
            if self.task is not None:
                raise ConfigError(f"{self.task.name} is not done yet. Wait for it, then try again.")
            self.task, self.error = Task(name, 0.0), None
        threading.Thread(target=self._do, args=(name, work), name="logitbench-background", daemon=True).start()

    def _do(self, name: str, work: Callable[[Callable[[float], None]], object]) -> None:
        def tell(share: float) -> None:
            self.task = Task(name, min(max(share, 0.0), 1.0))

        try:
            work(tell)
        except EngineError as error:
            self.error = error
        finally:
            self.task = None
