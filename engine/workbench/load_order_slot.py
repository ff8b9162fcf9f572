"""Load order A, B, A, measured in the background with the machine to itself, one pair of models at a time."""

import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

from engine.bench.measuring.load_order import ORDER, LoadOrder, LoadStep, measure_load_order
from engine.bench.measuring.opening import Opening
from engine.errors import ConfigError, EngineError, ModelError
from engine.workbench.model_slot import ModelSlot, ModelState

KEPT = 16
"""Pairs whose last measurement is kept until the workbench ends."""

_log = logging.getLogger(__name__)


class OrderRun:
    """A, B, A being measured, or measured. Any thread may look at it, and stop it.

    share: 0 to 1. steps: the loads that are over. found: what came of it; error: why nothing did, also after `stop`.
    """

    def __init__(self, a: Path, b: Path) -> None:
        self.a, self.b = a, b
        self.share = 0.0
        self.steps: list[LoadStep] = []
        self.found: LoadOrder | None = None
        self.error: EngineError | None = None
        self.is_stopped = False
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._opening: Opening | None = None
        self._over = threading.Event()

    @property
    def is_running(self) -> bool:
        """False once it is over, in whatever way."""
        return not self._over.is_set()

    @property
    def left_s(self) -> float:
        """Seconds until it is over, at the pace so far; NaN where that is not known."""
        return (time.monotonic() - self._began) * (1 / self.share - 1) if self.share else math.nan

    @property
    def loading(self) -> str:
        """The file that is loaded now."""
        return {"A": self.a, "B": self.b}[ORDER[min(len(self.steps), len(ORDER) - 1)]].name

    def stop(self) -> None:
        """End it; returns at once."""
        with self._lock:
            self.is_stopped = True
            if self._opening is not None:
                self._opening.stop()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end."""
        self._over.wait(timeout_s)

    def measure(self) -> None:
        """Do it: blocks until it is over."""
        try:
            self.found = measure_load_order(
                self.a, self.b, on_step=self.steps.append, on_opening=self._begin, on_progress=self._tell
            )
        except EngineError as error:
            self.error = error
        except Exception as defect:
            _log.exception("the load order could not be measured")
            self.error = ModelError(f"The loads could not be measured, through a defect of this program: {defect!r}")

    def end(self) -> None:
        """It is over, and the machine is free."""
        self._over.set()

    def _begin(self, opening: Opening) -> None:
        with self._lock:
            self._opening = opening
            if self.is_stopped:
                opening.stop()

    def _tell(self, share: float) -> None:
        self.share = share


class LoadOrderSlot:
    """Measures one pair at a time. Any thread may call it. `busy_with` names what would be measured too, else empty.

    The model of the model bar makes room meanwhile and is loaded again afterwards, unless a person chose another.
    """

    def __init__(self, slot: ModelSlot, busy_with: Callable[[], str]) -> None:
        self._slot, self._busy_with = slot, busy_with
        self._lock = threading.Lock()
        self._runs: dict[tuple[Path, Path], OrderRun] = {}
        self._current: OrderRun | None = None
        self._is_closed = False

    @property
    def running(self) -> OrderRun | None:
        """What is being measured, if anything is."""
        run = self._current
        return run if run is not None and run.is_running else None

    @property
    def doing(self) -> str:
        """What is being measured, in words; empty where nothing is."""
        run = self.running
        return f"The load order of {run.a.name} and {run.b.name}" if run is not None else ""

    def of(self, a: Path, b: Path) -> OrderRun | None:
        """The last measurement of this pair in this order, running or over; None where there was none."""
        return self._runs.get((a.resolve(), b.resolve()))

    def start(self, a: Path, b: Path) -> None:
        """Measure in the background. Raises ConfigError where that would be disturbed or would disturb, and for the
        same model twice; what else goes wrong is the run's `error`."""
        pair = a.resolve(), b.resolve()
        if pair[0] == pair[1]:
            raise ConfigError(f"{a.name} is both A and B; choose two different models.")
        with self._lock:
            if self._is_closed:
                return
            self._check_undisturbed()
            run = self._current = OrderRun(*pair)
            self._runs.pop(pair, None)
            self._runs[pair] = run
            while len(self._runs) > KEPT:
                del self._runs[next(iter(self._runs))]
        threading.Thread(target=self._do, args=(run,), name="logitbench-load-order", daemon=True).start()

    def stop(self) -> None:
        """End what is being measured; nothing happens where nothing is."""
        run = self.running
        if run is not None:
            run.stop()

    def close(self) -> None:
        """Stop, load no model again, and wait for the end."""
        with self._lock:
            self._is_closed = True
        run = self.running
        if run is not None:
            run.stop()
            run.wait()

    def _check_undisturbed(self) -> None:
        pool = self._slot.state.pool
        busy = self.doing or self._busy_with() or ("A trial" if pool is not None and pool.num_open else "")
        if busy:
            raise ConfigError(f"{busy} is not done yet and would be measured too. Wait for it, or stop it.")

    def _do(self, run: OrderRun) -> None:
        before = self._slot.state
        try:
            if before.path is not None:
                self._slot.eject()
            run.measure()
            self._put_back(before)
        finally:
            run.end()

    def _put_back(self, before: ModelState) -> None:
        if before.path is not None and self._slot.state.path is None and not self._is_closed:
            self._slot.load(before.path, before.spec if before.pool is not None else None)
