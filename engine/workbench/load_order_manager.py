"""Load-order measurements: load A, B, A in the background with exclusive use of the machine, one pair at a time."""

from contextlib import suppress
from pathlib import Path

from engine.bench.measurement.load_order import ORDER, LoadOrder, LoadStep, measure_load_order
from engine.bench.measurement.load_timeout import LoadTimeout
from engine.errors import ConfigError, PoolClosed
from engine.models.details import readable
from engine.tasks import Task, TaskRunner
from engine.workbench.machine_lease import MachineBusy, MachineLease
from engine.workbench.model_manager import ModelManager

KEPT = 16
"""Number of pairs whose last measurement is held in memory."""


class OrderRun(Task[LoadOrder]):
    """Task that measures the loads A, B, A. steps: the finished loads.

    The model in `model_manager` is ejected first and loaded again afterwards.
    """

    def __init__(self, a: Path, b: Path, model_manager: ModelManager) -> None:
        super().__init__(f"The load-order measurement of {a.name} and {b.name}", lambda _task: self._measure())
        self.a, self.b = a, b
        self.steps: list[LoadStep] = []
        self._model_manager = model_manager

    def _measure(self) -> LoadOrder:
        before = self._model_manager.state
        if before.path is not None:
            self._model_manager.eject()
        try:
            return measure_load_order(
                self.a, self.b, on_step=self.steps.append, on_opening=self._opens, on_progress=self.report
            )
        finally:
            if before.path is not None:
                self.let_go()
                with suppress(MachineBusy, PoolClosed):  # another measurement has begun, or the workbench is closing
                    self._model_manager.load(before.path, before.spec if before.engine is not None else None)

    def _opens(self, timeout: LoadTimeout) -> None:
        loaded = {"A": self.a, "B": self.b}[ORDER[len(self.steps)]]
        self.report(doing=f"Loading {readable(loaded.name)}, {len(self.steps) + 1} of {len(ORDER)}", left_s=self.left_s)
        self.on_stop(timeout.stop)


class LoadOrderManager:
    """Runner of load-order measurements, one pair at a time. Any thread may call it."""

    def __init__(self, model_manager: ModelManager, machine: MachineLease) -> None:
        self._model_manager, self._machine = model_manager, machine
        self._runner = TaskRunner[OrderRun]()
        self._runs: dict[tuple[Path, Path], OrderRun] = {}

    @property
    def running(self) -> OrderRun | None:
        """The running measurement, or None."""
        return self._runner.running

    def of(self, a: Path, b: Path) -> OrderRun | None:
        """Return the last measurement of this pair in this order, running or finished; None where there was none."""
        return self._runs.get((a.resolve(), b.resolve()))

    def start(self, a: Path, b: Path) -> None:
        """Start a measurement in the background.

        Raises ConfigError where it would disturb other work or be disturbed by it, and where both models are the same;
        any other failure is the run's `error`.
        """
        a, b = a.resolve(), b.resolve()
        if a == b:
            raise ConfigError(f"{a.name} is both A and B; choose two different models.")
        run = OrderRun(a, b, self._model_manager)
        self._runner.start(run, lambda: self._machine.acquire(run.name, "measurement"))
        self._runs.pop((a, b), None)
        self._runs[a, b] = run
        while len(self._runs) > KEPT:
            del self._runs[next(iter(self._runs))]

    def stop(self) -> None:
        """Stop the running measurement, if there is one."""
        self._runner.stop()

    def close(self) -> None:
        """Stop the running measurement and wait for it to end."""
        self._runner.close()
