"""One benchmark while it is measured, as a task."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from engine.bench.planning.plan import Plan
from engine.bench.running.progress import Progress
from engine.bench.running.session import Session
from engine.errors import HistoryError
from engine.samples import SURROUNDINGS
from engine.tasks import Progress as TaskProgress
from engine.tasks import Task
from engine.units import counted
from engine.workbench.bench_keeping import HistoryKeeper


class Running(NamedTuple):
    """The run that is being measured. lights: surroundings of its last sample, by name in SURROUNDINGS; failure: why
    its samples are not kept for now, None where they are."""

    run_id: str
    plan: Plan
    progress: Progress
    lights: Mapping[str, float]
    failure: HistoryError | None


class BenchRun(Task[None]):
    """Measurement of a session, in a thread of its own."""

    def __init__(self, session: Session, keeper: HistoryKeeper, measure: Callable[[Task[None]], None]) -> None:
        super().__init__("A benchmark", measure)
        self.session, self._keeper = session, keeper
        self.on_stop(session.stop)
        self.follow(self._progress)

    @property
    def now(self) -> Running:
        """What is measured, how far it is and how quiet the machine was."""
        session = self.session
        samples = session.record.samples
        lights = {name: float(samples[-1][name]) for name in SURROUNDINGS} if len(samples) else {}
        return Running(session.id, session.plan, session.progress, lights, self._keeper.failure)

    def _progress(self) -> TaskProgress:
        now = self.session.progress
        share = now.done / now.total if now.total else 0.0
        return TaskProgress(share, f"{now.done:,} of {counted(now.total, 'sample')}", now.left_s)
