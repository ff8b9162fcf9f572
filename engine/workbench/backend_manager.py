"""Backend measurements of embedding models: run in the background, one model at a time, with progress and Stop."""

from collections.abc import Callable

from engine.embedding.measuring import Progress, measure_backends
from engine.embedding.models import find_model
from engine.tasks import Task, TaskRunner
from engine.workbench.machine_lease import MachineLease


class BackendRun(Task[None]):
    """Task that measures the backends of one model; the engine stores the result.

    `make_room` frees the memory of other models.
    """

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


class BackendManager:
    """Runner of backend measurements, one model at a time. Any thread may call it."""

    def __init__(self, machine: MachineLease, make_room: Callable[[], object]) -> None:
        self._machine, self._make_room = machine, make_room
        self._runner = TaskRunner[BackendRun]()

    @property
    def running(self) -> BackendRun | None:
        """The running measurement, or None."""
        return self._runner.running

    def last(self, model: str) -> BackendRun | None:
        """Return the last measurement, running or finished, if it was of this model; None otherwise."""
        run = self._runner.last
        return run if run is not None and run.model == model else None

    def start(self, model: str) -> None:
        """Start a measurement in the background.

        Raises ConfigError where it would disturb other work or be disturbed by it, ModelError for an unknown model.
        """
        find_model(model)
        run = BackendRun(model, self._make_room)
        self._runner.start(run, lambda: self._machine.acquire(run.name, "measurement"))

    def stop(self) -> None:
        """Stop the running measurement, if there is one."""
        self._runner.stop()

    def close(self) -> None:
        """Stop the running measurement and wait for it to end."""
        self._runner.close()
