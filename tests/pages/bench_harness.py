"""Benchmark runs made up from a plan with known figures, and a manager that the page can drive without measuring."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from engine.bench.analysis.summary import summarise
from engine.bench.planning.cells import cells_of
from engine.bench.planning.plan import Plan
from engine.bench.planning.preview import Preview, preview
from engine.bench.running.progress import Progress
from engine.errors import HistoryError
from engine.ids import new_id
from engine.machine.quietness import Quietness
from engine.reference import reference_run
from engine.runs import CellRecord, RunRecord, RunStatus, RunSummary
from engine.samples import FLAGS, Samples, make_sample
from engine.tasks import Task, TaskRunner
from engine.units import counted
from engine.workbench.bench_manager import CONNECTING, WAITING
from engine.workbench.machine_lease import MachineLease
from tests.engine.bench.embedding_runs import embedding_run
from tests.scripted_task import ScriptedTask

START = datetime(2026, 11, 20, 9, 30, tzinfo=UTC)


def speed_of(settings: Mapping[str, Any]) -> float:
    """Tokens per second of a machine of two cores that gains from sequences, as the sketches of a real one do."""
    instances, threads = map(int, settings.get("layout", "1x1").split("x"))
    cores = min(instances * threads, 2) ** 0.9
    together = instances * settings["parallel"]
    speed: float = 400.0 * cores * together**0.55 * (1.08 if instances > 1 else 1)
    return speed


def make_run(
    plan: Plan,
    *,
    status: RunStatus = "done",
    noise: float = 0.02,
    seed: int = 0,
    objective_met_up_to: int = 1 << 30,
    **changes: Any,
) -> RunRecord:
    """A run of `plan` whose samples scatter by `noise` (standard deviation of the logarithm).

    objective_met_up_to: the most users whose requests are all answered as wanted; of more only half are.
    """
    cells = cells_of(plan)
    random = np.random.default_rng(seed)
    rows: list[Samples] = []
    for number in range(plan.rounds):
        for cell in random.permutation(len(cells)).tolist():
            if not cells[cell].refusal:
                sample = _sample(cells[cell].settings, cell, number, len(rows), noise, random)
                is_met = cells[cell].workload.users <= objective_met_up_to
                sample["goodput_per_s"] = sample["requests_per_s"] * (1 if is_met else 0.5)
                rows.append(sample)
    records = tuple(
        CellRecord(
            number=cell.number,
            label=cell.label,
            settings=cell.settings,
            status="refused" if cell.refusal else "done",
            reason=cell.refusal,
            facts={"load_warm_s": 0.21, "load_cold_s": 0.9, "interpreter_s": 0.4, "repetitions": 4},
        )
        for cell in cells
    )
    made = RunRecord(
        id=new_id(), created_at=START, name=plan.name, question=plan.question, status=status, plan=plan.to_dict(),
        machine={"cpu": "Two cores", "cores": 2}, versions={"llama-cpp-python": "0.3.36"}, cells=records,
        samples=np.concatenate(rows),
    )  # fmt: skip
    return replace(made, **changes)


def _sample(
    settings: Mapping[str, Any], cell: int, number: int, position: int, noise: float, random: np.random.Generator
) -> Samples:
    flag = "contended" if random.random() < 0.06 else "clean"
    speed = speed_of(settings) * np.exp(random.normal(0, noise)) * (0.85 if flag == "contended" else 1)
    instances = int(settings.get("layout", "1x1").split("x")[0])
    streams = instances * settings["parallel"]
    return make_sample(
        cell=cell, round=number, position=position, started_at=START.timestamp() + 1.4 * position, duration_s=1.2,
        flag=FLAGS.index(flag), tokens_per_s=speed, decode_per_s=speed / streams, tpot_s=streams / speed,
        prefill_per_s=3.1 * speed, ttft_s=streams * 20 / speed, e2e_s=streams * 52 / speed,
        requests_per_s=speed / 32, pss_bytes=60e6 + 35e6 * instances + 2e6 * streams, cpu_cores=1.9,
        private_bytes=50e6 * instances, workbench_share=0.004, steal_share=0.0,
    )  # fmt: skip


@dataclass
class ScriptedRunning:
    """As the manager's Running."""

    run_id: str
    plan: Plan
    progress: Progress
    noise: dict[str, float] = field(default_factory=dict)
    failure: HistoryError | None = None


class ScriptedManager:
    """The manager of benchmarks with the same methods; what was called is in `calls`. One that runs has `machine`."""

    def __init__(self, *runs: RunRecord, machine: MachineLease | None = None) -> None:
        self.runs = {run.id: run for run in runs}
        self.deleted: dict[str, RunRecord] = {}
        self.unkept: set[str] = set()
        self.task: ScriptedTask | None = None
        self._running: ScriptedRunning | None = None
        self._machine = machine or MachineLease()
        self.kept: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.machine: Any = None
        self.quiet: Quietness | None = None
        self.background = TaskRunner[Task[Any]]()
        self.confirmed: tuple[str, ...] = ()

    @property
    def running(self) -> ScriptedRunning | None:
        return self._running if self.task is not None and self.task.is_running else None

    def begin(self, run: RunRecord, plan: Plan, done: int = 14, total: int = 36, left_s: float | None = 372.0) -> None:
        """Let a run be measured."""
        self.runs[run.id] = replace(run, status="running")
        progress = Progress(
            done=done, total=total, cell=1, left_s=left_s, turn_left_s=4.0, status="running", message="measuring"
        )
        noise = {"steal_share": 0.0, "pressure_share": 0.04, "throttled_s": 0.0, "other_cores": 0.3}
        self._running = ScriptedRunning(run.id, plan, progress, noise)
        self.task = ScriptedTask("A benchmark", done / total, counted(done, "sample"), left_s)
        self.task.start(self._machine.acquire("A benchmark", "benchmark"))

    def end(self, status: RunStatus = "done") -> None:
        """Let the run that is measured end."""
        assert self._running is not None and self.task is not None
        self.runs[self._running.run_id] = replace(self.runs[self._running.run_id], status=status)
        self.task.finish()

    def is_only_in_memory(self, run_id: str) -> bool:
        return run_id in self.unkept

    def close(self) -> None:
        """Let nothing run any more."""
        self.background.close()
        if self.task is not None:
            self.task.stop()
            self.task.wait(60)

    def start(self, plan: Plan, *, confirmed: Collection[str] = ()) -> str:
        self.confirmed = tuple(confirmed)
        self.calls.append(("start", plan))
        run = embedding_run(new_id(), plan) if plan.is_embedding else make_run(plan)
        self.begin(run, plan)
        return run.id

    def stop(self) -> None:
        self.calls.append(("stop",))
        self.end("stopped")

    def resume(self, run_id: str, *, confirmed: Collection[str] = ()) -> str:
        self.confirmed = tuple(confirmed)
        self.calls.append(("resume", run_id))
        return run_id

    def with_rounds(self, run_id: str, more: int) -> Plan:
        plan = Plan.from_dict(self.runs[run_id].plan)
        return replace(plan, rounds=plan.rounds + more)

    def add_rounds(self, run_id: str, more: int, *, confirmed: Collection[str] = ()) -> str:
        self.confirmed = tuple(confirmed)
        self.calls.append(("add_rounds", run_id, more))
        return run_id

    def use(self, run_id: str, cell: int) -> None:
        self.calls.append(("use", run_id, cell))

    def run(self, run_id: str) -> RunRecord | None:
        return self.runs.get(run_id) or reference_run(run_id)

    def rename(self, run_id: str, name: str) -> None:
        self.runs[run_id] = replace(self.runs[run_id], name=name)

    def delete(self, run_id: str) -> None:
        self.deleted[run_id] = self.runs.pop(run_id)

    def restore(self, run_id: str) -> None:
        self.runs[run_id] = self.deleted.pop(run_id)

    def profile(self, run_id: str, cell: int) -> bytes:
        return f"{run_id} {cell}".encode()

    def recent(self) -> list[RunSummary]:
        return [_line(run) for run in reversed(self.runs.values())]

    def newest_id(self) -> str | None:
        return next(reversed(self.runs), None)

    def interrupted(self) -> list[RunSummary]:
        return [line for line in self.recent() if line.status == "interrupted"]

    def preview(self, plan: Plan) -> Preview:
        return preview(plan)

    def plans(self) -> dict[str, dict[str, Any]]:
        return self.kept

    def save_plan(self, name: str, plan: Plan) -> None:
        self.kept[name] = plan.to_dict()

    def delete_plan(self, name: str) -> None:
        del self.kept[name]

    def limits(self) -> Any:
        return self.machine

    def measure_limits(self, model: str = "", num_prompt: int = 512) -> None:
        self.calls.append(("measure_limits", model, num_prompt))

    def start_shape(self, shape: str, run_id: str, *, confirmed: Collection[str] = ()) -> None:
        self.confirmed = tuple(confirmed)
        self.calls.append(("start_shape", shape, run_id))

    def quietness(self) -> Quietness | None:
        return self.quiet

    def start_when_quiet(self, plan: Plan, *, confirmed: Collection[str] = ()) -> None:
        self.confirmed = tuple(confirmed)
        self.calls.append(("start_when_quiet", plan))
        self.background.start(ScriptedTask(WAITING))

    def start_together(self, plan: Plan, address: str) -> None:
        self.calls.append(("start_together", plan, address))
        self.background.start(ScriptedTask(CONNECTING))

    def build_llama_bench(self) -> None:
        self.calls.append(("build_llama_bench",))
        self.background.start(ScriptedTask("Building llama-bench"))

    def import_file(self, name: str, content: bytes) -> str:
        self.calls.append(("import_file", name, content))
        return next(iter(self.runs))

    def export(self, run_id: str, kind: str) -> bytes:
        return f"{run_id} {kind}".encode()


def _line(run: RunRecord) -> RunSummary:
    return RunSummary(
        id=run.id, created_at=run.created_at, name=run.name, question=run.question, status=run.status,
        origin=run.origin, model_name="story", machine_hash="m", num_cells=len(run.cells),
        num_samples=len(run.samples), sentence=summarise(run).sentence,
    )  # fmt: skip
