"""Load order A, B, A, measured in the background with the machine to itself, one pair of models at a time."""

from contextlib import suppress
from pathlib import Path

from engine.bench.measuring.load_order import ORDER, LoadOrder, LoadStep, measure_load_order
from engine.bench.measuring.opening import Opening
from engine.errors import ConfigError, PoolClosed
from engine.models.details import readable
from engine.tasks import Task, TaskRunner
from engine.workbench.machine_lease import MachineBusy, MachineLease
from engine.workbench.model_slot import ModelSlot

KEPT = 16
"""Pairs whose last measurement is kept until the workbench ends."""


class OrderRun(Task[LoadOrder]):
    """Measurement of A, B, A. steps: the loads that are over.

    The model in `slot` makes room meanwhile, and is loaded again afterwards.
    """

    def __init__(self, a: Path, b: Path, slot: ModelSlot) -> None:
        super().__init__(f"The load order of {a.name} and {b.name}", lambda _task: self._measure())
        self.a, self.b = a, b
        self.steps: list[LoadStep] = []
        self._slot = slot

    def _measure(self) -> LoadOrder:
        before = self._slot.state
        if before.path is not None:
            self._slot.eject()
        try:
            return measure_load_order(
                self.a, self.b, on_step=self.steps.append, on_opening=self._opens, on_progress=self.report
            )
        finally:
            if before.path is not None:
                self.let_go()
                with suppress(MachineBusy, PoolClosed):  # somebody measures already again, or the workbench closes
                    self._slot.load(before.path, before.spec if before.pool is not None else None)

    def _opens(self, opening: Opening) -> None:
        loaded = {"A": self.a, "B": self.b}[ORDER[len(self.steps)]]
        self.report(doing=f"Loading {readable(loaded.name)}, {len(self.steps) + 1} of {len(ORDER)}", left_s=self.left_s)
        self.on_stop(opening.stop)


class LoadOrderSlot:
    """Measures one pair at a time. Any thread may call it."""

    def __init__(self, slot: ModelSlot, machine: MachineLease) -> None:
        self._slot, self._machine = slot, machine
        self._runner = TaskRunner[OrderRun]()
        self._runs: dict[tuple[Path, Path], OrderRun] = {}

    @property
    def running(self) -> OrderRun | None:
        """What is being measured, if anything is."""
        return self._runner.running

    def of(self, a: Path, b: Path) -> OrderRun | None:
        """The last measurement of this pair in this order, running or over; None where there was none."""
        return self._runs.get((a.resolve(), b.resolve()))

    def start(self, a: Path, b: Path) -> None:
        """Measure in the background. Raises ConfigError where that would be disturbed or would disturb, and for the
        same model twice; what else goes wrong is the run's `error`."""
        a, b = a.resolve(), b.resolve()
        if a == b:
            raise ConfigError(f"{a.name} is both A and B; choose two different models.")
        run = OrderRun(a, b, self._slot)
        self._runner.start(run, lambda: self._machine.acquire(run.name, "measurement"))
        self._runs.pop((a, b), None)
        self._runs[a, b] = run
        while len(self._runs) > KEPT:
            del self._runs[next(iter(self._runs))]

    def stop(self) -> None:
        """End what is being measured; nothing happens where nothing is."""
        self._runner.stop()

    def close(self) -> None:
        """Stop, and wait for the end."""
        self._runner.close()
