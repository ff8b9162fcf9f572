"""Load order A, B, A, measured in the background with the machine to itself, one pair of models at a time."""

from collections.abc import Callable
from pathlib import Path

from engine.bench.measuring.load_order import ORDER, LoadOrder, LoadStep, measure_load_order
from engine.bench.measuring.opening import Opening
from engine.errors import ConfigError
from engine.workbench.measured_alone import AloneSlot, Run
from engine.workbench.model_slot import ModelSlot

KEPT = 16
"""Pairs whose last measurement is kept until the workbench ends."""


class OrderRun(Run):
    """A, B, A. steps: the loads that are over. found: what came of it; `error` says why nothing did, also after
    `stop`."""

    what = "The loads"

    def __init__(self, a: Path, b: Path) -> None:
        super().__init__()
        self.a, self.b = a, b
        self.steps: list[LoadStep] = []
        self.found: LoadOrder | None = None

    @property
    def loading(self) -> str:
        """The file that is loaded now."""
        return {"A": self.a, "B": self.b}[ORDER[min(len(self.steps), len(ORDER) - 1)]].name

    def _measure(self) -> None:
        self.found = measure_load_order(
            self.a, self.b, on_step=self.steps.append, on_opening=self._opens, on_progress=self._tell
        )

    def _opens(self, opening: Opening) -> None:
        self._ends_by(opening.stop)

    def _tell(self, share: float) -> None:
        self.share = share


class LoadOrderSlot(AloneSlot[OrderRun]):
    """Measures one pair at a time.

    The model of the model bar makes room meanwhile and is loaded again afterwards, unless a person chose another, or
    the workbench closes.
    """

    def __init__(self, slot: ModelSlot, busy_with: Callable[[], str]) -> None:
        super().__init__(busy_with)
        self._slot = slot
        self._runs: dict[tuple[Path, Path], OrderRun] = {}

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
        self._begin(OrderRun(*pair))

    def _busy(self) -> str:
        pool = self._slot.state.pool
        return super()._busy() or ("A trial" if pool is not None and pool.num_open else "")

    def _take(self, run: OrderRun) -> None:
        super()._take(run)
        self._runs.pop((run.a, run.b), None)
        self._runs[run.a, run.b] = run
        while len(self._runs) > KEPT:
            del self._runs[next(iter(self._runs))]

    def _measure(self, run: OrderRun) -> None:
        before = self._slot.state
        if before.path is not None:
            self._slot.eject()
        run.measure()
        if before.path is not None and self._slot.state.path is None and not self._is_closed:
            self._slot.load(before.path, before.spec if before.pool is not None else None)
