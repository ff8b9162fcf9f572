"""Backends of an embedding model measured in the background, one model at a time, with progress and Stop."""

from collections.abc import Callable

from engine.embedding.measuring import Progress, measure_backends
from engine.embedding.models import find_model
from engine.tasks import Task, TaskRunner
from engine.workbench.machine_lease import MachineLease


class BackendRun(Task[None]):
    """Measurement of the backends of one model, which the engine keeps. `make_room` frees what other models hold."""

    def __init__(self, model: str, make_room: Callable[[], object]) -> None:
        super().__init__("A measurement of embedding backends", lambda _task: self._measure())
        self.model = model
        self._make_room = make_room

    def _measure(self) -> None:
        self._make_room()
        measure_backends(
            self.model, on_progress=self._tell, on_opening=self.on_stop, is_stopped=lambda: self.is_stopped
        )
        self.check()

    def _tell(self, progress: Progress) -> None:
        self.update(progress.share, progress.doing)


class BackendSlot:
    """Measures one model's backends at a time. Any thread may call it."""

    def __init__(self, machine: MachineLease, make_room: Callable[[], object]) -> None:
        self._machine, self._make_room = machine, make_room
        self._runner = TaskRunner[BackendRun]()

    @property
    def running(self) -> BackendRun | None:
        """What is being measured, if anything is."""
        return self._runner.running

    def last(self, model: str) -> BackendRun | None:
        """The last measurement of this model since the workbench was started, running or over."""
        run = self._runner.last
        return run if run is not None and run.model == model else None

    def start(self, model: str) -> None:
        """Measure in the background. Raises ConfigError where that would be disturbed or would disturb, ModelError for
        a model that is not here."""
        find_model(model)
        run = BackendRun(model, self._make_room)
        self._runner.start(run, lambda: self._machine.acquire(run.name, "measurement"))

    def stop(self) -> None:
        """End what is being measured; nothing happens where nothing is."""
        self._runner.stop()

    def close(self) -> None:
        """Stop, and wait for the end."""
        self._runner.close()
