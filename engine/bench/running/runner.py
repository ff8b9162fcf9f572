"""Runner: measures a plan turn by turn until done or stopped; a configuration that fails does not end the run."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from engine.bench.measurement.target import Measured, Target
from engine.bench.planning.guesses import ExpectedTurn
from engine.bench.planning.plan import Plan, PlannedCell
from engine.bench.planning.schedule import Turn, turns_of
from engine.bench.running.progress import Progress, TurnTimes
from engine.bench.running.strategies import Rounds, Strategy
from engine.errors import EngineError, PoolClosed, WorkerDied
from engine.machine.other_programs import largest
from engine.runs import CellRecord, RunStatus
from engine.samples import FLAGS, Samples, make_sample, no_samples

MOST_SEEDS = 1 << 31


class Reporter(Protocol):
    """Receiver of a run's results, called immediately in the thread that runs."""

    def cell(self, record: CellRecord) -> None:
        """Report that a configuration changed: its facts are known, it failed, or it is done."""

    def sample(self, sample: Samples) -> None:
        """Report one new sample, shape (1,)."""

    def replaced(self, positions: list[int]) -> None:
        """Report that the samples at these positions no longer count."""


class Cells(Protocol):
    """Source of targets: `engine.bench.measurement.target_pool.TargetPool`."""

    def target(self, cell: PlannedCell) -> Target:
        """Return the configuration's target, opened or still open; raises EngineError."""

    def drop(self, cell: PlannedCell) -> None:
        """Close the configuration's workers, which are dead or hang."""

    def stop(self) -> None:
        """End a load in progress, and open nothing any more; called from another thread."""


class Runner:
    """One run, in the thread that calls run(); stop() and progress() may be called from any other.

    The default strategy is the plan's schedule of rounds, which raises ConfigError when no configuration can run. To
    continue a run, pass the samples and records that it has so far: turns that they fill are not measured again.
    `between` is called before each turn and may wait, so that other work can use the machine first. expected: guessed
    seconds of turns by configuration; see TurnTimes.
    """

    def __init__(
        self,
        plan: Plan,
        cells: Sequence[PlannedCell],
        targets: Cells,
        reporter: Reporter,
        *,
        strategy: Strategy | None = None,
        samples: Samples | None = None,
        records: Iterable[CellRecord] | None = None,
        between: Callable[[], object] = lambda: None,
        expected: Mapping[int, ExpectedTurn] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._targets = targets
        self._reporter = reporter
        self._between = between
        self._clock = clock
        self.samples = no_samples() if samples is None else samples.copy()
        known = {record.number: record for record in records or ()}
        self._records = {cell.number: known.get(cell.number, first_record(cell)) for cell in cells}
        self._strategy = strategy or Rounds(turns_of(plan, cells), cells, self.samples)
        self._out = {record.number for record in self._records.values() if record.status in ("failed", "refused")}
        self._times = TurnTimes(expected, self.samples)
        self._disturbed_s = 0.0
        self._programs: dict[str, float] = defaultdict(float)
        self._warm: dict[int, Target] = {}
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._busy: Target | None = None
        self._turn_began: float | None = None
        self._progress = self._progress_at(None, "running")

    @property
    def records(self) -> tuple[CellRecord, ...]:
        """Current records of all configurations, in their order."""
        return tuple(self._records.values())

    @property
    def programs(self) -> dict[str, float]:
        """Mean cores used by other programs while disturbed samples were taken, by name, highest first."""
        return largest((name, spent / self._disturbed_s) for name, spent in self._programs.items())

    def run(self) -> RunStatus:
        """Measure until the strategy has no more turns or stop() was called; return the final status.

        "failed" when no configuration gave a sample. Internal defects and errors of the reporter are raised; everything
        reported by then stays stored.
        """
        try:
            while not self._stopping.is_set():
                turn = self._strategy.next(self.samples, self._out)
                if turn is None:
                    return self._end("done" if len(self.samples) else "failed")
                self._between()
                if not self._stopping.is_set():
                    self._take(turn)
            return self._end("stopped")
        except BaseException:
            self._end("failed")
            raise

    def stop(self) -> None:
        """End the run at once: the sample being measured is dropped, all others stay stored."""
        self._stopping.set()
        self._targets.stop()
        with self._lock:
            if self._busy is not None:
                self._busy.close()

    @property
    def is_stopped(self) -> bool:
        """Whether stop() was called."""
        return self._stopping.is_set()

    def target(self, cell: PlannedCell) -> Target:
        """Return a configuration's target, which stop() closes from now on, so that everything waiting for it ends.

        Raises EngineError, which is PoolClosed after stop().
        """
        target = self._targets.target(cell)
        with self._lock:
            self._busy = target
        if self.is_stopped:
            raise PoolClosed("the run was stopped")
        return target

    def progress(self) -> Progress:
        """Return the current progress."""
        now, began = self._progress, self._turn_began
        if now.left_s is None or now.turn_left_s is None or began is None:
            return now
        gone_s = self._clock() - began
        return replace(now, left_s=max(0.0, now.left_s - gone_s), turn_left_s=max(0.0, now.turn_left_s - gone_s))

    def _take(self, turn: Turn) -> None:
        """Take one turn; where the worker died, repeat it once with a new one."""
        cell = self._strategy.asked(turn)
        self._turn_began = self._clock()
        for is_last in (False, True):
            self._progress = self._progress_at(turn.cell, "running")
            try:
                measured = self._measured(turn, cell)
            except EngineError as error:
                if self._stopping.is_set():
                    return
                self._targets.drop(cell)
                if isinstance(error, WorkerDied | PoolClosed) and not is_last:
                    continue
                self._fail(turn.cell, str(error))
                return
            break
        if not self._stopping.is_set():
            self._times.add(turn.cell, self._clock() - self._turn_began, measured.duration_s)
            self._keep(turn, measured)

    def _measured(self, turn: Turn, cell: PlannedCell) -> Measured:
        target = self.target(cell)
        try:
            if self._warm.get(turn.cell) is not target:
                target.warm_up(self._plan.timeout_s)
                self._warm[turn.cell] = target
            measured = target.sample((self._plan.seed + turn.round) % MOST_SEEDS, self._plan.timeout_s)
            self._note_facts(turn.cell, target)
            return measured
        finally:
            with self._lock:
                self._busy = None

    def _note_facts(self, cell: int, target: Target) -> None:
        record = self._records[cell]
        facts, remark = {**record.facts, **target.facts}, target.remark or record.reason
        if (facts, remark) != (record.facts, record.reason):
            self._record(replace(record, facts=facts, reason=remark))

    def _keep(self, turn: Turn, measured: Measured) -> None:
        position = int(self.samples["position"].max(initial=-1)) + 1
        sample = make_sample(
            cell=turn.cell,
            round=turn.round,
            position=position,
            started_at=measured.started_at,
            duration_s=measured.duration_s,
            flag=FLAGS.index(measured.flag),
            is_anchor=turn.is_anchor,
            **measured.metrics,
            **measured.noise,
        )
        self.samples = np.concatenate([self.samples, sample])
        if measured.flag != "clean":
            self._disturbed_s += measured.duration_s
            for name, cores in measured.programs.items():
                self._programs[name] += cores * measured.duration_s
        self._reporter.sample(sample)
        positions = self._strategy.review(self.samples)
        if positions:
            self.samples["is_replaced"][np.isin(self.samples["position"], positions)] = True
            self._reporter.replaced(positions)

    def _fail(self, cell: int, reason: str) -> None:
        self._out.add(cell)
        self._record(replace(self._records[cell], status="failed", reason=reason))

    def _record(self, record: CellRecord) -> None:
        self._records[record.number] = record
        self._reporter.cell(record)

    def _end(self, status: RunStatus) -> RunStatus:
        self._turn_began = None
        if status == "done":
            for number in np.unique(self.samples["cell"]).tolist():
                if self._records[number].status == "open":
                    self._record(replace(self._records[number], status="done"))
        self._progress = self._progress_at(None, status)
        return status

    def _progress_at(self, cell: int | None, status: RunStatus) -> Progress:
        done = len(self.samples)
        ahead = self._strategy.ahead(self.samples, self._out) if status == "running" else []
        ahead = ahead if cell is None else [cell, *ahead]
        return Progress(
            done=done,
            total=done + len(ahead),
            cell=cell,
            left_s=self._left_s(ahead) if status == "running" else 0.0,
            turn_left_s=0.0 if cell is None else self._times.left_s([cell]),
            status=status,
            message=self._strategy.says,
        )

    def _left_s(self, ahead: Sequence[int]) -> float | None:
        """Return the seconds until the end: what the strategy leaves itself, else what the turns ahead will take."""
        budget_s = self._strategy.left_s
        return self._times.left_s(ahead) if budget_s is None else budget_s


def first_record(cell: PlannedCell) -> CellRecord:
    """Return the record of a configuration before it is measured: open, or refused with its reason."""
    return CellRecord(
        number=cell.number,
        label=cell.label,
        settings=cell.settings,
        status="refused" if cell.refusal else "open",
        reason=cell.refusal,
    )
