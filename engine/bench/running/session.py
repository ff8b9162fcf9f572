"""Benchmark session: one run of a plan from its first configuration to its outcome, stored through a keeper."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

from engine.bench.analysis.capacity import capacity
from engine.bench.analysis.disturbance import PROGRAMS
from engine.bench.analysis.embeddings import embedding_sentence
from engine.bench.analysis.summary import summarise
from engine.bench.analysis.time_breakdown import time_breakdown
from engine.bench.baselines.arms import open_target
from engine.bench.measurement.target_pool import TargetPool
from engine.bench.planning.candidates import planned_cells
from engine.bench.planning.feasibility import Feasibility
from engine.bench.planning.guesses import expected_turns
from engine.bench.planning.plan import Cell, Objective, Plan, PlannedCell
from engine.bench.planning.remote import RemoteBudget, remote_requests, sent_by
from engine.bench.planning.schedule import MOST_REPEATS, turns_of
from engine.bench.planning.together import Together
from engine.bench.running.comparing import compared_answers, compared_vectors
from engine.bench.running.progress import Progress
from engine.bench.running.runner import Runner, first_record
from engine.bench.running.strategies import Rounds, Strategy
from engine.bench.running.tuning import Tuning
from engine.cluster.specs import SENDS_WITHIN_S
from engine.errors import ConfigError
from engine.ids import new_id
from engine.machine.fingerprint import EMBEDDING_PACKAGES, fingerprint, fingerprint_hash, versions
from engine.runs import CellRecord, RunRecord, RunStatus
from engine.samples import Samples


class Keeper(Protocol):
    """Storage of a run while it is measured; called from the thread that runs."""

    def begin(self, run: RunRecord) -> None:
        """Store a run that begins, or that continues with its data so far."""

    def cell(self, record: CellRecord) -> None:
        """Store a changed configuration."""

    def sample(self, sample: Samples) -> None:
        """Store one new sample, shape (1,)."""

    def replaced(self, positions: list[int]) -> None:
        """Mark the samples at these positions as no longer counted."""

    def finish(self, status: RunStatus, outcome: Mapping[str, Any]) -> None:
        """Store the end of the run; outcome["sentence"] is its result in one sentence."""


class Session:
    """A run that can be watched and stopped from other threads; `run` measures it in the calling thread.

    `before`: the run to continue, whose plan is the same or has fewer rounds. `between`: see Runner. most_repeats: of
    samples since the last good control, see `strategies.Rounds`; a search for settings has its own rule, and none is
    taken again where requests go to other machines. confirmed:
    addresses of other machines to which a person has allowed the plan's requests. together: nodes that measure the plan
    as one, see Together. Raises ConfigError where no configuration of the plan can run, for requests to an address that
    was not confirmed, and for what nodes cannot measure together.
    """

    def __init__(
        self,
        plan: Plan,
        keeper: Keeper,
        *,
        before: RunRecord | None = None,
        between: Callable[[], object] = lambda: None,
        most_repeats: int = MOST_REPEATS,
        confirmed: Collection[str] = (),
        together: Together | None = None,
    ) -> None:
        if together is not None:
            plan = together.plan_of(plan)
        self.plan, self._keeper = plan, keeper
        feasibility = Feasibility(is_here=together is None)
        self._cells = planned_cells(plan, feasibility)
        if all(cell.refusal for cell in self._cells):
            raise ConfigError(f"no configuration of this plan can run: {self._cells[0].refusal}")
        budget, elsewhere = RemoteBudget(confirmed, sent_by(plan)), remote_requests(plan, self._cells)
        budget.check(elsewhere)
        cluster = together.cluster if together is not None else None
        self._targets = TargetPool(
            partial(open_target, budget=budget, cluster=cluster),
            feasibility=feasibility,
            measures_cold=plan.measures_cold,
            more_s=0.0 if cluster is None else SENDS_WITHIN_S,
        )
        generating = [cell for cell in self._cells if isinstance(cell, Cell)]
        self._tuning = Tuning(plan, generating) if plan.question == "settings" else None
        begun = before or _begun(plan, self._cells, together)
        self._run = replace(begun, plan=plan.to_dict(), status="running", outcome={})
        self._programs_before = begun.outcome.get(PROGRAMS, {})
        self._compared: dict[int, CellRecord] = {}
        self._runner = Runner(
            plan,
            self._cells,
            self._targets,
            keeper,
            strategy=self._strategy(0 if elsewhere else most_repeats),
            samples=self._run.samples,
            records=self._run.cells,
            between=between,
            expected=expected_turns(plan, self._cells),
        )

    def _strategy(self, most_repeats: int) -> Strategy:
        samples = self._run.samples
        if self._tuning is not None:
            return self._tuning.strategy(samples)
        return Rounds(turns_of(self.plan, self._cells), self._cells, samples, most_repeats=most_repeats)

    @property
    def id(self) -> str:
        """Id of the run, a UUIDv7."""
        return self._run.id

    @property
    def record(self) -> RunRecord:
        """Current record of the run, with all samples so far."""
        cells = tuple(self._compared.get(cell.number, cell) for cell in self._runner.records)
        return replace(self._run, cells=cells, samples=self._runner.samples)

    @property
    def progress(self) -> Progress:
        """Current progress of the run."""
        return self._runner.progress()

    def stop(self) -> None:
        """End the run at once; the sample being measured is dropped, as are answers being compared; all others stay."""
        self._runner.stop()

    def run(self) -> RunRecord:
        """Measure, and return the whole run with its outcome; errors of the keeper are raised once all is closed."""
        self._keeper.begin(self.record)
        status: RunStatus = "failed"
        outcome: dict[str, Any] = {}
        try:
            status = self._runner.run()
            if status == "done" and (self.plan.compares_answers or self.plan.is_embedding):
                status = self._compare()
            outcome = self._outcome(status) | self._disturbed_by()
        finally:
            self._targets.close()
            self._run = replace(self.record, status=status, outcome=outcome)
            self._keeper.finish(status, outcome)
        return self._run

    def _compare(self) -> RunStatus:
        """Record how far the configurations' answers or vectors are from a reference; return the status of the run."""
        pairs = zip(self._cells, self._runner.records, strict=True)
        measured = [(cell, record) for cell, record in pairs if record.status == "done"]
        compared = compared_vectors if self.plan.is_embedding else compared_answers
        for record in compared(measured, self._runner.target, self.plan.timeout_s):
            if self._runner.is_stopped:
                return "stopped"
            self._note(record)
        return "done"

    def _note(self, record: CellRecord) -> None:
        self._compared[record.number] = record
        self._keeper.cell(record)

    def _disturbed_by(self) -> dict[str, Any]:
        programs = self._runner.programs or self._programs_before
        return {PROGRAMS: dict(programs)} if programs else {}

    def _outcome(self, status: RunStatus) -> dict[str, Any]:
        run = self.record
        if not len(run.samples):
            reasons = [cell.reason for cell in run.cells if cell.reason]
            return {"sentence": f"Nothing was measured: {reasons[0]}" if reasons else "Nothing was measured."}
        if self._tuning is not None:
            out = [cell.number for cell in run.cells if cell.status in ("failed", "refused")]
            return self._tuning.outcome(run.samples, out=out, is_over=status == "done")
        if self.plan.question == "users":
            return {"sentence": capacity(run, Objective.from_dict(self.plan.objective)).sentence}
        if self.plan.is_embedding:
            return {"sentence": embedding_sentence(run)}
        sentence = time_breakdown(run).sentence if self.plan.question == "python" else ""
        return {"sentence": sentence or summarise(run).sentence}


def _begun(plan: Plan, cells: Sequence[PlannedCell], together: Together | None) -> RunRecord:
    machine = fingerprint() if together is None else together.machine
    return RunRecord(
        id=new_id(),
        created_at=datetime.now(UTC),
        name=plan.name,
        question=plan.question,
        status="running",
        plan=plan.to_dict(),
        machine={"hash": fingerprint_hash(machine), **machine},
        origin="measured" if together is None else together.origin,
        versions=versions(EMBEDDING_PACKAGES if plan.is_embedding else ()),
        cells=tuple(map(first_record, cells)),
    )
