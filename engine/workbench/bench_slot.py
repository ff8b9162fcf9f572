"""The one benchmark that may run in a workbench: started, watched, stopped, continued; and the runs that were kept."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.bench.exchange import files as exchange
from engine.bench.findings.ceiling import ceiling_key, prefill_ceiling
from engine.bench.findings.limits import Limits, measure_limits
from engine.bench.measuring.machine import fingerprint, fingerprint_hash
from engine.bench.measuring.quietness import QuietMeter, Quietness, wait_for_quiet
from engine.bench.peers.llama_bench_program import build_llama_bench
from engine.bench.planning.candidates import planned_cells
from engine.bench.planning.plan import Cell, Plan
from engine.bench.planning.preview import Preview, preview
from engine.bench.running.session import Session
from engine.csv_cells import escaped
from engine.errors import ConfigError, HistoryError
from engine.history import History, run_bytes
from engine.models import model_hash, read_model
from engine.models.synthetic import write_synthetic
from engine.reference import reference_run
from engine.runs import RunRecord, RunSummary
from engine.samples import SAMPLE
from engine.settings import Settings
from engine.specs import PoolSpec
from engine.tasks import Task, TaskRunner
from engine.workbench.bench_keeping import HistoryKeeper
from engine.workbench.bench_run import BenchRun, Running
from engine.workbench.history_slot import HistorySlot
from engine.workbench.importer import Importer
from engine.workbench.machine_lease import Kind, MachineLease
from engine.workbench.model_slot import ModelSlot

POLL_S = 0.05
WAITING = "Waiting for a quiet machine"
FIELDS = SAMPLE.names or ()
NO_HISTORY = "The history cannot be used, so nothing can be kept. Mend that first; the reason stands on the page."


class BenchSlot:
    """Runs one benchmark at a time in a thread of its own. Any thread may call it.

    While one runs, the interactive pool is held: what a person asks of it starts between two samples. `background` has
    what is prepared for benchmarks.
    """

    def __init__(
        self,
        settings: Settings,
        slot: ModelSlot,
        kept: HistorySlot,
        machine: MachineLease,
        importer: Importer,
    ) -> None:
        self._settings, self._slot, self._kept = settings, slot, kept
        self._machine, self._importer = machine, importer
        self._runs = TaskRunner[BenchRun]()
        self.background = TaskRunner[Task[object]]()
        self._meter = QuietMeter()
        self._unkept: dict[str, RunRecord] = {}
        self._limits: Limits | None = None

    # one run

    @property
    def task(self) -> Task[None] | None:
        """The measurement that runs, as a task, if one does."""
        return self._runs.running

    @property
    def running(self) -> Running | None:
        """The run that is being measured, if one is."""
        task = self._runs.running
        return task.now if task is not None else None

    def start(self, plan: Plan) -> str:
        """Measure a plan in the background; gives the run's id. Raises ConfigError, ModelError, MemoryRefused."""
        return self._start(plan)

    def resume(self, run_id: str) -> str:
        """Go on with a run that was stopped or interrupted: what it has is not measured again."""
        run = self._existing(run_id)
        return self._start(Plan.from_dict(run.plan), run)

    def add_rounds(self, run_id: str, more: int) -> str:
        """Measure `more` further rounds of a run."""
        run = self._existing(run_id)
        plan = Plan.from_dict(run.plan)
        return self._start(replace(plan, rounds=plan.rounds + more), run)

    def start_shape(self, shape: str, run_id: str) -> None:
        """Ask of a synthetic model what a run asked of its own; the file is written in the background, once.

        Raises ConfigError where something is being done already, and while something is measured.
        """
        plan = Plan.from_dict(self._existing(run_id).plan)
        path = self._settings.models / f"{shape}-Q4_K_M.gguf"
        plan = replace(plan, model=str(path), name=f"{plan.name} {shape}".strip())

        def write_and_start(task: Task[object]) -> None:
            if not path.is_file():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_synthetic(shape, path, progress=task.update)
            task.let_go()
            self._start(plan)

        self._prepare(f"Writing {path.name}", "shared", write_and_start)

    def start_when_quiet(self, plan: Plan) -> None:
        """Measure a plan once nothing else has used the machine for some seconds; waits in the background till then.

        Raises ConfigError where something is being done already, and while something is measured.
        """

        def wait_and_start(task: Task[object]) -> None:
            wait_for_quiet(task)
            task.let_go()
            self._start(plan)

        self._prepare(WAITING, "shared", wait_and_start)

    def quietness(self) -> Quietness | None:
        """How quiet the machine is now; None until a second reading."""
        return self._meter.read()

    def stop(self) -> None:
        """End the run that is measured, at once; nothing happens where none is."""
        self._runs.stop()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until nothing is measured."""
        self._runs.wait(timeout_s)

    def close(self) -> None:
        """Stop, and wait for the workers to end."""
        self.background.stop()  # both are ending while one is waited for
        self._runs.close()
        self.background.close()

    @property
    def _session(self) -> Session | None:
        task = self._runs.running
        return task.session if task is not None else None

    def _start(self, plan: Plan, before: RunRecord | None = None) -> str:
        keeper = HistoryKeeper(self._kept.history, self._kept.failed)
        session = Session(plan, keeper, before=before, between=self._let_others_go_first)
        task = BenchRun(session, keeper, lambda task: self._measure(task, session, keeper))
        self._runs.start(task, lambda: self._machine.acquire(task.name, "benchmark"))
        return session.id

    def _measure(self, task: Task[None], session: Session, keeper: HistoryKeeper) -> None:
        self._kept.forget(session.id)
        self._unkept[session.id] = session.record
        try:
            session.run()
        finally:
            self._release()
            self._keep(session.record, keeper)
        task.check()

    def _keep(self, run: RunRecord, keeper: HistoryKeeper) -> None:
        """See that a run that has ended is in the history; it stays in memory until it is."""
        self._unkept[run.id] = run
        if keeper.keep_all(run):
            del self._unkept[run.id]
        else:
            self._kept.write_later(run.id, lambda history: self._put(history, run))

    def _put(self, history: History, run: RunRecord) -> None:
        history.runs.put(run)
        self._unkept.pop(run.id, None)

    def _prepare(self, name: str, kind: Kind, work: Callable[[Task[object]], object]) -> None:
        self.background.start(Task(name, work), lambda: self._machine.acquire(name, kind))

    def _let_others_go_first(self) -> None:
        """Between two samples: what a person asked of the interactive pool runs now, alone; a load is waited for."""
        task = self._runs.running
        if task is None:
            return
        while self._slot.state.is_loading and not task.is_stopped:
            task.sleep(POLL_S)
        pool = self._slot.state.pool
        if pool is None:
            return
        if pool.num_open:
            pool.resume()
            while pool.num_open and not task.is_stopped:
                task.sleep(POLL_S)
        pool.pause()

    def _release(self) -> None:
        pool = self._slot.state.pool
        if pool is not None:
            pool.resume()

    # what a question may lack

    def build_llama_bench(self) -> None:
        """Compile llama-bench in the background, which takes minutes."""
        self._prepare("Building llama-bench", "shared", lambda task: build_llama_bench(task.update))

    # runs that were kept

    def run(self, run_id: str) -> RunRecord | None:
        """A run with all its samples: measured, being measured, or of the notes that ship; None where there is none."""
        session = self._session
        if session is not None and session.id == run_id:
            return session.record
        history = self._kept.history
        unkept = self._unkept.get(run_id)
        return unkept or (history.runs.run(run_id) if history else None) or reference_run(run_id)

    def is_only_in_memory(self, run_id: str) -> bool:
        """Whether a run that has ended could not be kept."""
        return run_id in self._unkept and (self._session is None or self._session.id != run_id)

    def recent(self) -> list[RunSummary]:
        """The latest runs that are kept, newest first."""
        history = self._kept.history
        return history.runs.recent() if history else []

    def newest_id(self) -> str | None:
        """The run that a page opens on: the one being measured, else the newest."""
        session = self._session
        if session is not None:
            return session.id
        history = self._kept.history
        return (history.runs.newest_id() if history else None) or next(reversed(self._unkept), None)

    def interrupted(self) -> list[RunSummary]:
        """Runs whose program ended before they did."""
        history = self._kept.history
        return history.runs.interrupted() if history else []

    def rename(self, run_id: str, name: str) -> None:
        """Give a kept run another name. Raises ConfigError for an empty or endless one, HistoryError without a run."""
        self._kept_in().runs.rename(run_id, name)

    def delete(self, run_id: str) -> None:
        """Hide a run until `restore`. Raises ConfigError where it is being measured, or is not there."""
        session = self._session
        if session is not None and session.id == run_id:
            raise ConfigError("This run is being measured. Stop it first, then delete it.")
        if run_id in self._unkept:
            raise ConfigError("This run could not be kept yet. Delete it once the history works again.")
        if not self._kept_in().runs.delete(run_id):
            raise ConfigError("There is no such run to delete: it is gone already, or was never kept.")

    def restore(self, run_id: str) -> None:
        """Undo `delete`. Raises ConfigError where the run is gone for good."""
        if not self._kept_in().runs.restore(run_id):
            raise ConfigError("The run cannot be restored: it was purged when the history was opened again.")

    def import_file(self, name: str, content: bytes) -> str:
        """Keep the run that a file holds, of any kind that is imported; gives its id.

        Raises ConfigError or HistoryError with line and reason; nothing is kept then.
        """
        taken = self._importer.take_in(self._kept_in(), name, content)
        if not taken.run_ids:
            raise ConfigError(f"{name} holds no run to show here. {taken.sentence} The History page has the rest.")
        return taken.run_ids[0]

    def export(self, run_id: str, kind: str) -> bytes:
        """A run as a file: "run" (everything, for another workbench), "csv" (samples), "llama-bench" (JSONL), "sidecar"
        (JSON: what those rows leave out)."""
        run = self._existing(run_id)
        if kind == "llama-bench":
            return exchange.write_run(run, "jsonl").encode()
        if kind == "sidecar":
            return exchange.sidecar(run).encode()
        return run_bytes(run) if kind == "run" else _samples_csv(run)

    def _existing(self, run_id: str) -> RunRecord:
        run = self.run(run_id)
        if run is None:
            raise ConfigError("The address names a run that is not here: it was deleted, or never kept. Plan it again.")
        return run

    def _kept_in(self) -> History:
        history = self._kept.history
        if history is None:
            raise HistoryError(NO_HISTORY)
        return history

    # plans, profiles, limits

    def preview(self, plan: Plan) -> Preview:
        """What a plan takes, before its launch. Raises ConfigError."""
        return preview(plan)

    def plans(self) -> dict[str, dict[str, Any]]:
        """Plans that were kept, by name, as plain values."""
        history = self._kept.history
        return history.runs.plans() if history else {}

    def save_plan(self, name: str, plan: Plan) -> None:
        """Keep a plan under a name."""
        self._kept_in().runs.save_plan(name, plan.to_dict())

    def delete_plan(self, name: str) -> None:
        """Forget a plan."""
        self._kept_in().runs.delete_plan(name)

    def use(self, run_id: str, cell: int) -> None:
        """Keep a cell's settings as a profile of its model, and load the model with them."""
        chosen = self._planned(run_id, cell)
        history = self._kept.history
        if history is not None:
            digest = model_hash(chosen.model, self._settings.home)
            history.runs.save_profile(chosen.label, digest, chosen.pool.to_dict(), run_id)
        self._slot.load(Path(chosen.model), chosen.pool)

    def profile(self, run_id: str, cell: int) -> bytes:
        """A cell's settings as the JSON that `Pool.from_profile` takes."""
        chosen = self._planned(run_id, cell)
        return json.dumps({"model": chosen.model, "pool": chosen.pool.to_dict()}, indent=1).encode()

    def _planned(self, run_id: str, number: int) -> Cell:
        plan = Plan.from_dict(self._existing(run_id).plan)
        planned = planned_cells(plan)
        chosen = next((one for one in planned if one.number == number), None)
        if chosen is None:
            raise ConfigError(f"the plan of this run has no cell {number}")
        if not isinstance(chosen, Cell):
            raise ConfigError("This run embeds texts. Choose its model and backend on the Embeddings page.")
        return chosen

    def profiles(self, model: Path) -> dict[str, PoolSpec]:
        """Settings that were kept for a model file, by name, the latest first."""
        history = self._kept.history
        kept = history.runs.profiles() if history else []
        digest = model_hash(model, self._settings.home) if kept else ""
        return {one.name: PoolSpec.from_dict(one.pool) for one in kept if one.model_hash == digest}

    def limits(self) -> Limits | None:
        """What this machine can do at most, where that was measured."""
        history = self._kept.history
        if self._limits is None and history is not None:
            found = history.runs.limits(fingerprint_hash(fingerprint()))
            self._limits = Limits.from_dict(found) if found else None
        return self._limits

    def measure_limits(self, model: str = "", num_prompt: int = 512) -> None:
        """Measure that in the background, a few seconds, and keep it.

        With a model file also the best prefill of prompts of `num_prompt` tokens that this machine could reach with it:
        10 to 60 seconds more. Raises ConfigError where something else is being done already.
        """
        self._prepare(
            "Measuring this machine", "measurement", lambda task: self._measure_limits(model, num_prompt, task.update)
        )

    def _measure_limits(self, model: str, num_prompt: int, tell: Callable[[float], None]) -> None:
        known = self.limits()
        limits = known or measure_limits(on_progress=lambda share: tell(0.3 * share if model else share))
        if model:
            file = read_model(Path(model))
            best = prefill_ceiling(file, num_prompt, lambda share: tell(0.3 + 0.7 * share))
            limits = limits.with_prefill(ceiling_key(file, num_prompt), best)
        self._limits = limits
        history = self._kept.history
        if history is not None:
            history.runs.save_limits(limits.machine_hash, limits.to_dict())


def _samples_csv(run: RunRecord) -> bytes:
    labels = {cell.number: cell.label for cell in run.cells}
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["label", *FIELDS])
    writer.writerows([escaped(cell) for cell in (labels.get(row[0], ""), *row)] for row in run.samples.tolist())
    return text.getvalue().encode()
