"""Benchmarks of a workbench: start, watch, stop and resume the single running benchmark; access to stored runs."""

import json
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.bench.baselines.llama_bench_program import build_llama_bench
from engine.bench.planning.candidates import planned_cells
from engine.bench.planning.plan import Cell, Plan
from engine.bench.planning.preview import Preview, preview
from engine.bench.planning.schedule import MOST_REPEATS
from engine.bench.planning.together import Together, check_together, connected
from engine.bench.running.session import Session
from engine.errors import ConfigError, EngineError, HistoryError
from engine.exchange.importer import Importer
from engine.history import History
from engine.machine.limits import Limits
from engine.machine.quietness import QuietMeter, Quietness, wait_for_quiet
from engine.models import model_hash
from engine.models.synthetic import write_synthetic
from engine.reference import reference_run
from engine.runs import RunRecord, RunSummary
from engine.settings import Settings
from engine.specs import PoolSpec
from engine.tasks import Task, TaskRunner
from engine.workbench.bench_keeping import HistoryKeeper
from engine.workbench.bench_run import BenchRun, Running
from engine.workbench.history_manager import HistoryManager
from engine.workbench.machine_lease import Kind, MachineLease
from engine.workbench.machine_limits import MachineLimits
from engine.workbench.model_manager import ModelManager
from engine.workbench.run_files import run_file

POLL_S = 0.05
WAITING, CONNECTING = "Waiting for a quiet machine", "Connecting to the nodes"
"""Names of the preparations of a run that begins later."""
NO_HISTORY = "The history is unusable, so nothing can be saved. Fix that first; the page shows the reason."


class BenchManager:
    """Runner of benchmarks, one at a time in a thread of its own. Any thread may call it.

    While a benchmark runs, the interactive pool is paused: jobs submitted to it start between two samples. `background`
    runs the preparations for benchmarks, such as building llama-bench or writing a synthetic model. unsaved_of_nodes:
    returns by its id a run of a benchmark over nodes that is not stored yet.
    """

    def __init__(
        self,
        settings: Settings,
        model_manager: ModelManager,
        kept: HistoryManager,
        machine: MachineLease,
        importer: Importer,
        unsaved_of_nodes: Callable[[str], RunRecord | None],
    ) -> None:
        self._settings, self._model_manager, self._kept = settings, model_manager, kept
        self._machine, self._importer = machine, importer
        self._runs = TaskRunner[BenchRun]()
        self.background = TaskRunner[Task[object]]()
        self._meter = QuietMeter()
        self._unkept: dict[str, RunRecord] = {}
        self._unsaved_of_nodes = unsaved_of_nodes
        self._limits = MachineLimits(kept)

    # the running benchmark

    @property
    def task(self) -> Task[None] | None:
        """The running benchmark as a task, or None."""
        return self._runs.running

    @property
    def running(self) -> Running | None:
        """The run that is being measured, or None."""
        task = self._runs.running
        return task.now if task is not None else None

    def start(
        self,
        plan: Plan,
        before: RunRecord | None = None,
        *,
        most_repeats: int = MOST_REPEATS,
        confirmed: Collection[str] = (),
        together: Together | None = None,
    ) -> str:
        """Measure a plan in the background; return the run's id. Raises ConfigError, ModelError, MemoryRefused.

        before, most_repeats, confirmed, together: as for a Session.
        """
        keeper = HistoryKeeper(self._kept.history, self._kept.failed)
        session = Session(
            plan,
            keeper,
            before=before,
            between=self._let_others_go_first,
            most_repeats=most_repeats,
            confirmed=confirmed,
            together=together,
        )
        task = BenchRun(session, keeper, lambda task: self._measure(task, session, keeper))
        self._runs.start(task, lambda: self._machine.acquire(task.name, "benchmark"))
        return session.id

    def resume(self, run_id: str, *, confirmed: Collection[str] = ()) -> str:
        """Resume a stopped or interrupted run without repeating its samples; return its id."""
        run = self._existing(run_id)
        return self.start(Plan.from_dict(run.plan), run, confirmed=confirmed)

    def add_rounds(self, run_id: str, more: int, *, confirmed: Collection[str] = ()) -> str:
        """Measure `more` further rounds of a run; return its id."""
        return self.start(self.with_rounds(run_id, more), self._existing(run_id), confirmed=confirmed)

    def with_rounds(self, run_id: str, more: int) -> Plan:
        """Return the plan of a run with `more` further rounds."""
        plan = Plan.from_dict(self._existing(run_id).plan)
        return replace(plan, rounds=plan.rounds + more)

    def start_shape(self, shape: str, run_id: str, *, confirmed: Collection[str] = ()) -> None:
        """Repeat a run's plan with a synthetic model of this shape, whose file is written once, in the background.

        confirmed: as for a Session. Raises ConfigError while another preparation runs or a measurement is under way.
        """
        plan = Plan.from_dict(self._existing(run_id).plan)
        path = self._settings.models / f"{shape}-Q4_K_M.gguf"
        plan = replace(plan, model=str(path), name=f"{plan.name} {shape}".strip())

        def write_and_start(task: Task[object]) -> None:
            if not path.is_file():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_synthetic(shape, path, progress=task.update)
            self._go_on(task, lambda: self.start(plan, confirmed=confirmed))

        self._prepare(f"Writing {path.name}", "shared", write_and_start)

    def start_when_quiet(self, plan: Plan, *, confirmed: Collection[str] = ()) -> None:
        """Measure a plan once nothing else has used the machine for some seconds; wait for that in the background.

        confirmed: as for a Session. Raises ConfigError while another preparation runs or a measurement is under way.
        """

        def wait_and_start(task: Task[object]) -> None:
            wait_for_quiet(task)
            self._go_on(task, lambda: self.start(plan, confirmed=confirmed))

        self._prepare(WAITING, "shared", wait_and_start)

    def start_together(self, plan: Plan, address: str) -> None:
        """Measure a plan on all nodes of the cluster at `address` as one; connect to it first, in the background.

        Raises ConfigError for what nodes cannot measure together, while another preparation runs, or a measurement is
        under way. It fails as `connected` does.
        """
        check_together(plan)

        def connect_and_start(task: Task[object]) -> None:
            try:
                together = connected(address, task.on_stop)
            except EngineError:
                task.check()
                raise
            task.check()
            self._go_on(task, lambda: self.start(plan, together=together))

        self._prepare(CONNECTING, "shared", connect_and_start)

    def _go_on(self, task: Task[object], start: Callable[[], object]) -> None:
        """Start the run that a preparation was for; a stop of the preparation that comes meanwhile ends the run."""
        task.let_go()
        start()
        if task.is_stopped:
            self.stop()

    def quietness(self) -> Quietness | None:
        """Return how quiet the machine is now; None until the second reading."""
        return self._meter.read()

    def stop(self) -> None:
        """Stop the running benchmark immediately, if there is one."""
        self._runs.stop()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until no benchmark is running."""
        self._runs.wait(timeout_s)

    def close(self) -> None:
        """Stop the benchmark and its preparations, and wait for the workers to end."""
        self.background.stop()  # both end concurrently
        self._runs.close()
        self.background.close()

    @property
    def _session(self) -> Session | None:
        task = self._runs.running
        return task.session if task is not None else None

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
        """Store a finished run in the history; until that succeeds, it stays in memory."""
        self._unkept[run.id] = run
        if keeper.keep_all(run):
            del self._unkept[run.id]
        else:
            self._kept.write_later(run.id, lambda history: self._put(history, run), lambda: run)

    def _put(self, history: History, run: RunRecord) -> None:
        history.runs.put(run)
        self._unkept.pop(run.id, None)

    def _prepare(self, name: str, kind: Kind, work: Callable[[Task[object]], object]) -> None:
        self.background.start(Task(name, work), lambda: self._machine.acquire(name, kind))

    def _let_others_go_first(self) -> None:
        """Between two samples, run the waiting interactive jobs alone; wait for a model load first."""
        task = self._runs.running
        if task is None:
            return
        while self._model_manager.state.is_loading and not task.is_stopped:
            task.sleep(POLL_S)
        engine = self._model_manager.state.engine
        if engine is None:
            return
        if engine.num_open:
            engine.resume()
            while engine.num_open and not task.is_stopped:
                task.sleep(POLL_S)
        engine.pause()

    def _release(self) -> None:
        engine = self._model_manager.state.engine
        if engine is not None:
            engine.resume()

    # prerequisites of a question

    def build_llama_bench(self) -> None:
        """Compile llama-bench in the background; takes minutes."""
        self._prepare("Building llama-bench", "shared", lambda task: build_llama_bench(task.update))

    # stored runs

    def run(self, run_id: str) -> RunRecord | None:
        """Return a run with all its samples: running, stored, or from the shipped reference notes; None if unknown."""
        session = self._session
        if session is not None and session.id == run_id:
            return session.record
        history = self._kept.history
        return self._only_here(run_id) or (history.runs.run(run_id) if history else None) or reference_run(run_id)

    def is_only_in_memory(self, run_id: str) -> bool:
        """Return whether a finished run could not be stored yet."""
        return self._only_here(run_id) is not None and (self._session is None or self._session.id != run_id)

    def _only_here(self, run_id: str) -> RunRecord | None:
        return self._unkept.get(run_id) or self._unsaved_of_nodes(run_id)

    def recent(self) -> list[RunSummary]:
        """Return the latest stored runs, newest first."""
        history = self._kept.history
        return history.runs.recent() if history else []

    def newest_id(self) -> str | None:
        """Return the id of the run that a page opens with: the running one, else the newest; None if there is none."""
        session = self._session
        if session is not None:
            return session.id
        history = self._kept.history
        return (history.runs.newest_id() if history else None) or next(reversed(self._unkept), None)

    def interrupted(self) -> list[RunSummary]:
        """Return the runs whose process ended before they finished."""
        history = self._kept.history
        return history.runs.interrupted() if history else []

    def rename(self, run_id: str, name: str) -> None:
        """Rename a stored run. Raises ConfigError for an empty or overlong name, HistoryError for an unknown run."""
        self._kept_in().runs.rename(run_id, name)

    def delete(self, run_id: str) -> None:
        """Hide a run until `restore`. Raises ConfigError where it is running, not stored yet, or does not exist."""
        session = self._session
        if session is not None and session.id == run_id:
            raise ConfigError("This run is being measured. Stop it first, then delete it.")
        if self._only_here(run_id) is not None:
            raise ConfigError("This run could not be saved yet. Delete it once the history works again.")
        if not self._kept_in().runs.delete(run_id):
            raise ConfigError("There is no such run: it was already deleted or never saved.")

    def restore(self, run_id: str) -> None:
        """Undo `delete`. Raises ConfigError where the run has been purged."""
        if not self._kept_in().runs.restore(run_id):
            raise ConfigError("The run cannot be restored: it was purged when the history was opened again.")

    def import_file(self, name: str, content: bytes) -> str:
        """Import a file of any supported kind; return the id of its first run.

        Raises ConfigError or HistoryError with line and reason; nothing is stored then.
        """
        taken = self._importer.take_in(self._kept_in(), name, content)
        if not taken.run_ids:
            raise ConfigError(f"{name} contains no run. {taken.sentence} The History page has the rest.")
        return taken.run_ids[0]

    def export(self, run_id: str, kind: str) -> bytes:
        """Return a run as a file of this kind, see `run_file`."""
        return run_file(self._existing(run_id), kind)

    def _existing(self, run_id: str) -> RunRecord:
        run = self.run(run_id)
        if run is None:
            raise ConfigError("The URL names a run that does not exist: it was deleted or never saved. Plan it again.")
        return run

    def _kept_in(self) -> History:
        history = self._kept.history
        if history is None:
            raise HistoryError(NO_HISTORY)
        return history

    # plans, profiles, limits

    def preview(self, plan: Plan) -> Preview:
        """Return the estimated time and memory of a plan before its launch. Raises ConfigError."""
        return preview(plan)

    def plans(self) -> dict[str, dict[str, Any]]:
        """Return the saved plans by name, as plain values."""
        history = self._kept.history
        return history.runs.plans() if history else {}

    def save_plan(self, name: str, plan: Plan) -> None:
        """Save a plan under a name."""
        self._kept_in().runs.save_plan(name, plan.to_dict())

    def delete_plan(self, name: str) -> None:
        """Delete a saved plan."""
        self._kept_in().runs.delete_plan(name)

    def use(self, run_id: str, cell: int) -> None:
        """Save a configuration's settings as a profile of its model, and load the model with them."""
        chosen = self._planned(run_id, cell)
        history = self._kept.history
        if history is not None:
            digest = model_hash(chosen.model, self._settings.home)
            history.runs.save_profile(chosen.label, digest, chosen.pool.to_dict(), run_id)
        self._model_manager.load(Path(chosen.model), chosen.pool)

    def profile(self, run_id: str, cell: int) -> bytes:
        """Return a configuration's settings as the JSON that `Pool.from_profile` accepts."""
        chosen = self._planned(run_id, cell)
        return json.dumps({"model": chosen.model, "pool": chosen.pool.to_dict()}, indent=1).encode()

    def _planned(self, run_id: str, number: int) -> Cell:
        plan = Plan.from_dict(self._existing(run_id).plan)
        planned = planned_cells(plan)
        chosen = next((one for one in planned if one.number == number), None)
        if chosen is None:
            raise ConfigError(f"the plan of this run has no configuration {number}")
        if not isinstance(chosen, Cell):
            raise ConfigError("This run embeds texts. Choose its model and backend on the Embeddings page.")
        return chosen

    def profiles(self, model: Path) -> dict[str, PoolSpec]:
        """Return the saved profiles of a model file by name, latest first."""
        history = self._kept.history
        kept = history.runs.profiles() if history else []
        digest = model_hash(model, self._settings.home) if kept else ""
        return {one.name: PoolSpec.from_dict(one.pool) for one in kept if one.model_hash == digest}

    def limits(self) -> Limits | None:
        """Return the measured limits of this machine, or None if they have not been measured."""
        return self._limits.known()

    def known_limits(self, on_progress: Callable[[float], object]) -> Limits:
        """Return the limits of this machine, as `MachineLimits.measured`."""
        return self._limits.measured(on_progress)

    def measure_limits(self, model: str = "", num_prompt: int = 512) -> None:
        """Measure the machine's limits in the background, where not known yet (a few seconds), and save them.

        Given a model file, also measure the prefill ceiling of this machine with it, for prompts of `num_prompt`
        tokens: 10 to 60 seconds more. Raises ConfigError while another preparation or other work runs.
        """
        self._prepare(
            "Measuring this machine", "measurement", lambda task: self._limits.measure(model, num_prompt, task.update)
        )
