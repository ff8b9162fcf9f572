"""Running benchmark: the task that measures one session."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from engine.bench.planning.plan import Plan
from engine.bench.running.progress import Progress
from engine.bench.running.session import Session
from engine.errors import HistoryError
from engine.samples import SYSTEM_NOISE
from engine.tasks import Progress as TaskProgress
from engine.tasks import Task
from engine.units import counted
from engine.workbench.bench_keeping import HistoryKeeper


class Running(NamedTuple):
    """Snapshot of the run that is being measured.

    noise: system noise during its last sample, by name in SYSTEM_NOISE. failure: why its samples are currently not
    saved, None where they are.
    """

    run_id: str
    plan: Plan
    progress: Progress
    noise: Mapping[str, float]
    failure: HistoryError | None


class BenchRun(Task[None]):
    """Task that measures a session in a thread of its own."""

    def __init__(self, session: Session, keeper: HistoryKeeper, measure: Callable[[Task[None]], None]) -> None:
        super().__init__("A benchmark", measure)
        self.session, self._keeper = session, keeper
        self.on_stop(session.stop)
        self.follow(self._progress)

    @property
    def now(self) -> Running:
        """The run's plan, its progress, and the system noise of the last sample."""
        session = self.session
        samples = session.record.samples
        noise = {name: float(samples[-1][name]) for name in SYSTEM_NOISE} if len(samples) else {}
        return Running(session.id, session.plan, session.progress, noise, self._keeper.failure)

    def _progress(self) -> TaskProgress:
        now = self.session.progress
        share = now.done / now.total if now.total else 0.0
        return TaskProgress(share, counted(now.done, "sample"), now.left_s)
