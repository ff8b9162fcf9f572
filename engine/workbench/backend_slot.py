"""Backends of an embedding model measured in the background, one model at a time, with progress and Stop."""

import logging
import math
import threading
import time
from collections.abc import Callable

from engine.embedding.measuring import Progress, measure_backends
from engine.embedding.models import find_model
from engine.errors import ConfigError, EngineError, ModelError

_log = logging.getLogger(__name__)


class BackendRun:
    """The backends of one model being measured, or measured. `error` says why nothing came of it."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.progress = Progress(0.0, "")
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
        share = self.progress.share
        return (time.monotonic() - self._began) * (1 / share - 1) if share else math.nan

    def stop(self) -> None:
        """End it, also in the middle of a load; returns at once."""
        with self._lock:
            self.is_stopped = True
            self._kill()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end."""
        self._over.wait(timeout_s)

    def measure(self) -> None:
        """Do it: blocks until it is over. What was measured is kept by the engine."""
        try:
            measure_backends(
                self.model, on_progress=self._tell, on_opening=self._begin, is_stopped=lambda: self.is_stopped
            )
        except EngineError as error:
            self.error = None if self.is_stopped else error
        except Exception as defect:
            _log.exception("backends could not be measured")
            self.error = ModelError(f"The backends could not be measured, through a defect of this program: {defect!r}")
        finally:
            self._over.set()

    def _begin(self, kill: Callable[[], object]) -> None:
        with self._lock:
            self._kill = kill
            if self.is_stopped:
                kill()

    def _tell(self, progress: Progress) -> None:
        self.progress = progress


class BackendSlot:
    """Measures one model's backends at a time. Any thread may call it. `busy_with` names what would disturb, else
    empty; `make_room` frees the embedding model that is open."""

    def __init__(self, busy_with: Callable[[], str], make_room: Callable[[], object]) -> None:
        self._busy_with, self._make_room = busy_with, make_room
        self._lock = threading.Lock()
        self._run: BackendRun | None = None
        self._is_closed = False

    @property
    def running(self) -> BackendRun | None:
        """What is being measured, if anything is."""
        run = self._run
        return run if run is not None and run.is_running else None

    @property
    def doing(self) -> str:
        """What is being measured, in words; empty where nothing is."""
        return "A measurement of embedding backends" if self.running is not None else ""

    def last(self, model: str) -> BackendRun | None:
        """The last measurement of this model since the workbench was started, running or over."""
        run = self._run
        return run if run is not None and run.model == model else None

    def start(self, model: str) -> None:
        """Measure in the background. Raises ConfigError where that would be disturbed or would disturb, ModelError for
        a model that is not here."""
        find_model(model)
        with self._lock:
            if self._is_closed:
                return
            busy = self.doing or self._busy_with()
            if busy:
                raise ConfigError(f"{busy} is not done yet and would be measured too. Wait for it, or stop it.")
            run = self._run = BackendRun(model)
        threading.Thread(target=self._do, args=(run,), name="logitbench-backends", daemon=True).start()

    def close(self) -> None:
        """Stop, and wait for the end."""
        with self._lock:
            self._is_closed = True
        run = self.running
        if run is not None:
            run.stop()
            run.wait()

    def _do(self, run: BackendRun) -> None:
        self._make_room()
        run.measure()
