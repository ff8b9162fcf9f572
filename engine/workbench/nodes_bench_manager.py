"""Benchmarks over the nodes of a cluster: start, watch and stop the one that runs; the runs of a group."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from engine.bench.planning.plan import Plan
from engine.errors import HistoryError
from engine.over_nodes.cluster_bench import ClusterBench
from engine.over_nodes.group import GroupKeeper, Member, group_of, tag_of
from engine.over_nodes.node_bench import NodeBench
from engine.protocol import NodeInfo
from engine.runs import NODE, RunRecord
from engine.tasks import TaskRunner
from engine.workbench.bench_manager import NO_HISTORY
from engine.workbench.history_manager import HistoryManager
from engine.workbench.machine_lease import MachineLease

MOST_TOGETHER = 20
"""Nodes of a group that are shown beside each other, whose runs are read for that."""


class NodesBench(ClusterBench):
    """Task that measures a plan on every node and stores the runs; what could not be stored is tried again later."""

    def __init__(self, plan: Plan, address: str, kept: HistoryManager, only: Mapping[str, str] | None) -> None:
        self.plan, self.address, self._kept = plan, address, kept
        name = plan.name or "Benchmark"
        self._keeper = GroupKeeper(kept.history, tag_of(name, datetime.now()), kept.failed)
        super().__init__(plan, address, name, self._keeper.keep, only=only)

    def _measured(self) -> list[NodeBench]:
        try:
            return super()._measured()
        finally:
            for run in list(self._keeper.unsaved.values()):
                put, read = partial(self._keeper.put, run=run), partial(_itself, run)
                self._kept.write_later(run.id, put, read, run_tags=[self._keeper.tag])

    def unsaved(self, run_id: str) -> RunRecord | None:
        """Return one of the runs as it is now, where the history does not have it so; None where it does."""
        return self._keeper.unsaved.get(run_id)

    @property
    def num_unsaved(self) -> int:
        """Number of runs that the history does not have as they are now."""
        return len(self._keeper.unsaved)

    @property
    def run_ids(self) -> list[str]:
        """Ids of the runs that have begun, in the order of their nodes."""
        return [bench.record.id for bench in self.benches if bench.record is not None]


class NodesBenchManager:
    """Runner of benchmarks over nodes, one at a time in a thread of its own. Any thread may call it.

    Nothing else runs meanwhile, as nodes may be on this machine.
    """

    def __init__(self, kept: HistoryManager, machine: MachineLease) -> None:
        self._kept, self._machine = kept, machine
        self._runs = TaskRunner[NodesBench]()
        self._begun: list[NodesBench] = []

    @property
    def last(self) -> NodesBench | None:
        """The running benchmark, else the last one."""
        return self._runs.last

    @property
    def running(self) -> NodesBench | None:
        """The running benchmark, if any."""
        return self._runs.running

    def start(self, plan: Plan, address: str, *, only: Mapping[str, str] | None = None) -> None:
        """Measure a plan whole on each node of the cluster at `address`, in the background.

        only: names of the nodes that measure, by their ids; empty: all.

        Raises ConfigError for what nodes cannot measure and while the machine is used, HistoryError without a history.
        """
        if self._kept.history is None:
            raise HistoryError(NO_HISTORY)
        task = NodesBench(plan, address, self._kept, only)
        self._runs.start(task, lambda: self._machine.acquire(task.name, "measurement"))
        self._begun = [*(one for one in self._begun if one.num_unsaved), task]

    def start_again(self, run: RunRecord, address: str, node: NodeInfo) -> None:
        """Measure the plan of a node's run again on that node, see `node_of`, as `start` does."""
        self.start(plan_of(run), address, only={node.id: node.name})

    def unsaved(self, run_id: str) -> RunRecord | None:
        """Return a run of a node that the history does not have as it is now; None for every other id."""
        return next(filter(None, (task.unsaved(run_id) for task in self._begun)), None)

    def group(self, run: RunRecord) -> list[Member]:
        """Return the stored runs of a run's group, in the order of their nodes; empty where it has none."""
        history = self._kept.history
        return group_of(history, run) if history is not None else []

    def read(self, group: Sequence[Member]) -> list[RunRecord]:
        """Return runs with their samples; those that were deleted meanwhile are left out."""
        history = self._kept.history
        found = [history.runs.run(one.id) for one in group] if history is not None else []
        return [one for one in found if one is not None]

    def close(self) -> None:
        """Stop the benchmark, and wait for its end."""
        self._runs.close()


def _itself(run: RunRecord) -> RunRecord:
    return run


def plan_of(run: RunRecord) -> Plan:
    """Return the plan of a run, whose name is without that of the node that measured it."""
    plan = Plan.from_dict(run.plan)
    if not run.origin.startswith(NODE):
        return plan
    return replace(plan, name=plan.name.removesuffix(f" on {run.origin.removeprefix(NODE)}"))
