"""Benchmark on one node: starts the program that measures a plan there, and receives its run."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import psutil

from engine.bench.planning.plan import Plan
from engine.cluster.file_sending import send_model
from engine.cluster.model_files import ModelOffer
from engine.cluster.remote_node import RemoteNode
from engine.cluster.remote_worker import RemoteWorker
from engine.errors import EngineError, WorkerDied, named_error
from engine.history import run_from_bytes
from engine.ids import new_id
from engine.machine.fingerprint import fingerprint_hash
from engine.over_nodes import messages as m
from engine.over_nodes.node_of_run import IDENTITY, NAME_CHARACTERS, identity
from engine.process.channel import Channel
from engine.runs import NODE, CellRecord, RunRecord
from engine.tasks import Progress, Stopped
from engine.units import counted, percent

PROGRAM = "engine.over_nodes.bench_program"
LOOK_S, STOPS_WITHIN_S, SILENT_S = 0.2, 30.0, 60.0
"""How often a stop is looked for, how long the program may take to end after it, and how long it may be silent."""

_PATIENCE_S = 5.0
_FROM_PROGRAM: Any = m.FromProgram

Keep = Callable[[RunRecord], object]
"""Function that stores a run, which replaces what it stored of the same run before."""


class NodeBench:
    """One plan on one node. `record`: its run so far, None until it has begun; `error`: why it is not whole.

    The id, the plan, the names and the time of its beginning are given here; the rest comes from the node. keep:
    called with the run every few seconds, and at its end.
    """

    def __init__(self, node: RemoteNode, plan: Plan, offers: Mapping[str, ModelOffer], keep: Keep) -> None:
        self.node = node
        self.error: EngineError | None = None
        self.record: RunRecord | None = None
        self.share, self.doing, self.is_over = 0.0, "waits", False
        self.left_s: float | None = None
        self._plan, self._offers, self._keep = plan, offers, keep
        self._id, self._began = new_id(), datetime.now(UTC)
        self._fronts: dict[str, str] = {}
        self._stopping = threading.Event()

    @property
    def progress(self) -> Progress:
        """Share of the plan that is done, the current activity, and the time left."""
        return Progress(self.share, self.doing, self.left_s)

    def stop(self) -> None:
        """Have the run end at once; what was measured stays. From any thread."""
        self._stopping.set()

    def run(self) -> None:
        """Measure, and wait for the end; a failure becomes `error`. `keep` must not raise an EngineError."""
        self._began = datetime.now(UTC)
        try:
            self._check()
            plan = self._sent()
            self._measure(plan)
        except EngineError as error:
            self.error = error.bare()
            if self.record is not None and self.record.status == "running":
                outcome = {"sentence": f"Not measured to the end: {error}"}
                self._take(replace(self.record, status="interrupted", outcome=outcome))
        finally:
            self.doing, self.left_s, self.is_over = ("ended" if self.error is None else "failed"), None, True

    def _check(self) -> None:
        if self._stopping.is_set():
            raise Stopped(f"The benchmark on node {self.node.name} was stopped before it had begun.")

    def _sent(self) -> Plan:
        """Return the plan with the node's own paths, after sending the models that it does not have."""

        def tell(share: float, doing: str) -> None:
            self.doing = f"{doing or 'receives the model'} {percent(share)}"
            self._check()

        paths = {path: send_model(offer, self.node, tell) for path, offer in self._offers.items()}
        self._fronts = {there: here for here, there in paths.items()}
        axes = dict(self._plan.axes)
        if "model" in axes:
            axes["model"] = tuple(paths.get(str(path), path) for path in axes["model"])
        return replace(self._plan, model=paths.get(self._plan.model, self._plan.model), axes=axes)

    def _measure(self, plan: Plan) -> None:
        self.doing = "starts"
        worker = self.node.start_worker(PROGRAM, "")
        try:
            channel = Channel(worker.socket, _FROM_PROGRAM)
            channel.send(m.Measure(plan.to_dict(), self.node.cores))
            self._take_end(self._followed(channel, worker))
        except msgspec.MsgspecError as error:
            name = self.node.name
            raise WorkerDied(
                f"node {name}: its program sent what is no message ({error}): install the same Logitbench there"
            ) from error
        except (EOFError, OSError) as error:
            worker.close(_PATIENCE_S)
            raise WorkerDied(f"the program that measures {worker.ending()}") from error
        finally:
            worker.close(_PATIENCE_S)

    def _followed(self, channel: Channel, worker: RemoteWorker) -> m.Measured:
        """Take what the program says until its last message, which is returned; forward a stop."""
        heard_at, stopped_at = time.monotonic(), 0.0
        while True:
            now = time.monotonic()
            if self._stopping.is_set() and not stopped_at:
                stopped_at = now
                channel.set_deadline(now + STOPS_WITHIN_S)
                channel.send(m.StopRun())
            if now - heard_at > SILENT_S or (stopped_at and now - stopped_at > STOPS_WITHIN_S):
                worker.kill()
                raise WorkerDied(f"node {self.node.name}: the program that measures did not answer and was ended")
            try:
                message = channel.receive_one(now + LOOK_S)
            except TimeoutError:
                continue
            heard_at = time.monotonic()
            match message:
                case m.Progress():
                    self._note_progress(message)
                case m.SoFar():
                    self._take(self._own(message.run))
                case m.Measured():
                    return message

    def _note_progress(self, now: m.Progress) -> None:
        self.share = min(max(now.done / now.total, 0.0), 1.0) if now.total > 0 else 0.0
        self.left_s = now.left_s
        self.doing = f"{counted(now.done, 'sample')} of {now.total}" if now.total else "starts"

    def _take_end(self, end: m.Measured) -> None:
        if end.run:
            self._take(self._own(end.run))
        if end.error:
            raise named_error(end.error, f"node {self.node.name}: {end.text}")
        self.share = 1.0

    def _take(self, run: RunRecord) -> None:
        self.record = run
        self._keep(run)

    def _own(self, content: bytes) -> RunRecord:
        """Return the run that the node sent, as one of this history. Raises HistoryError where it is none."""
        run, name = run_from_bytes(content, f"The run of node {self.node.name}"), self.node.name[:NAME_CHARACTERS]
        facts = {key: value for key, value in run.machine.items() if key not in ("hash", "name", IDENTITY)}
        named = {**facts, "name": ": ".join(part for part in (name, str(facts.get("cpu", ""))) if part)}
        there = {} if self.node.address in _own_addresses() else {"address": self.node.address}
        return replace(
            run,
            id=self._id,
            created_at=self._began,
            name=self._plan.name,
            question=self._plan.question,
            plan=self._plan.to_dict(),
            machine={**named, "hash": fingerprint_hash(facts | there), IDENTITY: identity(self.node)},
            cells=tuple(self._with_path_here(cell) for cell in run.cells),
            origin=f"{NODE}{name}",
        )

    def _with_path_here(self, cell: CellRecord) -> CellRecord:
        model = str(cell.settings.get("model", ""))
        if model not in self._fronts:
            return cell
        return replace(cell, settings={**cell.settings, "model": self._fronts[model]})


def _own_addresses() -> set[str]:
    """Return the addresses of this machine: a node there is this machine, and has its fingerprint."""
    return {one.address for known in psutil.net_if_addrs().values() for one in known} | {"127.0.0.1"}


def models_of(plan: Plan) -> list[str]:
    """Return the paths of the models that a plan's configurations generate with; none of one that embeds."""
    if plan.is_embedding:
        return []
    return list(dict.fromkeys(path for path in (plan.model, *map(str, plan.axes.get("model", ()))) if path))
