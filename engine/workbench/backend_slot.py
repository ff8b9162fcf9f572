"""Backends of an embedding model measured in the background, one model at a time, with progress and Stop."""

from collections.abc import Callable

from engine.embedding.measuring import Progress, measure_backends
from engine.embedding.models import find_model
from engine.errors import EngineError
from engine.workbench.measured_alone import AloneSlot, Run


class BackendRun(Run):
    """The backends of one model; what was measured is kept by the engine. doing: the backend that is measured now.

    `error` stays None where somebody stopped it.
    """

    what = "The backends"

    def __init__(self, model: str) -> None:
        super().__init__()
        self.model = model
        self.doing = ""

    def _measure(self) -> None:
        try:
            measure_backends(
                self.model, on_progress=self._tell, on_opening=self._ends_by, is_stopped=lambda: self.is_stopped
            )
        except EngineError:
            if not self.is_stopped:
                raise

    def _tell(self, progress: Progress) -> None:
        self.share, self.doing = progress


class BackendSlot(AloneSlot[BackendRun]):
    """Measures one model's backends at a time. `make_room` frees the embedding model that is open."""

    def __init__(self, busy_with: Callable[[], str], make_room: Callable[[], object]) -> None:
        super().__init__(busy_with)
        self._make_room = make_room

    @property
    def doing(self) -> str:
        """What is being measured, in words; empty where nothing is."""
        return "A measurement of embedding backends" if self.running is not None else ""

    def last(self, model: str) -> BackendRun | None:
        """The last measurement of this model since the workbench was started, running or over."""
        run = self._current
        return run if run is not None and run.model == model else None

    def start(self, model: str) -> None:
        """Measure in the background. Raises ConfigError where that would be disturbed or would disturb, ModelError for
        a model that is not here."""
        find_model(model)
        self._begin(BackendRun(model))

    def _measure(self, run: BackendRun) -> None:
        self._make_room()
        run.measure()
