"""A task whose end a test decides."""

import threading
from typing import Any

from engine.errors import EngineError
from engine.tasks import Task

WITHIN_S = 60.0


class ScriptedTask(Task[Any]):
    """Runs from the start until `finish`, `fail` or a stop, with the progress that the test reports; no time passes."""

    def __init__(self, name: str = "Writing", share: float = 0.0, doing: str = "", left_s: float | None = None) -> None:
        super().__init__(name, lambda _task: self._act(), clock=lambda: 0.0)
        self._go_on = threading.Event()
        self._result: Any = None
        self._failure: Exception | None = None
        self.on_stop(self._go_on.set)
        self.report(share, doing, left_s)

    def finish(self, result: Any = None) -> None:
        """Let it end with this result."""
        self._result = result
        self._go_on.set()
        assert self.wait(WITHIN_S)

    def fail(self, failure: Exception | None = None) -> None:
        """Let it end with this failure."""
        self._failure = failure or EngineError("it could not be")
        self._go_on.set()
        assert self.wait(WITHIN_S)

    def _act(self) -> Any:
        assert self._go_on.wait(WITHIN_S)
        self.check()
        if self._failure is not None:
            raise self._failure
        return self._result
