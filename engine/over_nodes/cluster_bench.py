"""Benchmark over the nodes of a cluster: each measures the whole plan, and sends back a run of its own."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from engine.bench.planning.engines import is_external
from engine.bench.planning.plan import MAX_NAME_CHARACTERS, Plan
from engine.cluster.cluster import Cluster
from engine.cluster.model_files import model_offer
from engine.errors import ConfigError, PoolClosed
from engine.models.reading import read_model
from engine.over_nodes.node_bench import Keep, NodeBench, models_of
from engine.over_nodes.node_of_run import NAME_CHARACTERS
from engine.tasks import Progress, Stopped, Task
from engine.units import percent

GONE = "the cluster has no such node now"


class ClusterBench(Task[list[NodeBench]]):
    """Task that measures a plan on every node, and returns what came of each, in the order of their names.

    Nodes of one machine measure one after the other, those of different machines at the same time. A node that fails
    does not end the others. After `stop`, what was measured is returned; it fails as Stopped only where nothing had
    begun. group: name that the runs share; each has that of its node after it. keep: stores a run, see NodeBench; it
    is called from several threads. only: names of the nodes that measure, by their ids; empty: all. unusable: why nodes
    could not be used at all, by their names.

    Raises ConfigError, ModelError or ServerFailed where the models or the cluster cannot be used.
    """

    def __init__(
        self, plan: Plan, address: str, group: str, keep: Keep, *, only: Mapping[str, str] | None = None
    ) -> None:
        """Raises ConfigError as `check_for_nodes` does."""
        check_for_nodes(plan)
        super().__init__("The benchmark over nodes", lambda _task: self._measured())
        self._plan, self._address, self._group, self._keep = plan, address, group, keep
        self._only = dict(only or {})
        self._benches: list[NodeBench] = []
        self.unusable: dict[str, str] = {}

    @property
    def benches(self) -> list[NodeBench]:
        """What runs on each node, in the order of their names; empty until they are known."""
        return list(self._benches)

    @property
    def failures(self) -> list[str]:
        """Why nodes have no whole run, as a clause for each; those that a stop kept from beginning are left out."""
        ended = [bench.error for bench in self._benches if bench.error is not None]
        reasons = [str(error) for error in ended if not (self.is_stopped and isinstance(error, Stopped))]
        return reasons + [f"node {node}: {reason}" for node, reason in self.unusable.items()]

    def _measured(self) -> list[NodeBench]:
        models = [(path, read_model(os.path.abspath(path))) for path in models_of(self._plan)]
        offers = {path: model_offer(model, self._tell_hash) for path, model in models}
        self.update(0.0, "connects to the cluster")
        try:
            cluster = Cluster(self._address, self.on_stop)
        except PoolClosed as error:
            raise Stopped(f"{self.name} was stopped before it had begun.") from error
        with cluster:
            nodes = [node for node in cluster.nodes if node.id in self._only or not self._only]
            absent = self._only.keys() - {node.id for node in nodes}
            self.unusable = (
                {self._only[id]: cluster.failure_of(id) or GONE for id in sorted(absent)}
                if self._only
                else cluster.failures
            )
            self._benches = [
                NodeBench(node, replace(self._plan, name=name_on(node.name, self._group)), offers, self._keep)
                for node in nodes
            ]
            self.follow(self._progress)
            self.on_stop(self._stop_all)
            machines = self._by_machine()
            with ThreadPoolExecutor(max(1, len(machines))) as threads:
                list(threads.map(_in_turn, machines))  # raises the first error once all have ended
        return self._benches

    def _tell_hash(self, share: float, doing: str) -> None:
        self.update(0.0, f"{doing}: {percent(share)}")

    def _by_machine(self) -> list[list[NodeBench]]:
        found: dict[str, list[NodeBench]] = {}
        for bench in self._benches:
            found.setdefault(bench.node.address, []).append(bench)
        return list(found.values())

    def _stop_all(self) -> None:
        for bench in self._benches:
            bench.stop()

    def _progress(self) -> Progress:
        share = sum(bench.share for bench in self._benches) / max(len(self._benches), 1)
        left = [bench.left_s for bench in self._benches if not bench.is_over]
        known = [seconds for seconds in left if seconds is not None]
        doing = ", ".join(f"{bench.node.name}: {bench.doing}" for bench in self._benches)
        return Progress(share, doing, max(known) if known and len(known) == len(left) else None)


def check_for_nodes(plan: Plan) -> None:
    """Raise ConfigError for a plan that uses external engines, which nodes do not know."""
    asked = (*plan.axes.get("arm", ()), *plan.axes.get("backend", ()), plan.pool.get("backend", ""))
    if external := next((name for name in map(str, asked) if is_external(name)), ""):
        raise ConfigError(f"{external}: nodes do not know the external engines of this machine; leave it out")


def name_on(node: str, group: str) -> str:
    """Return the name of a node's run: its group's and its own, both shortened where they are too long for a plan."""
    ending = f" on {node[:NAME_CHARACTERS]}"
    return f"{group[: MAX_NAME_CHARACTERS - len(ending)]}{ending}"


def _in_turn(benches: list[NodeBench]) -> None:
    for bench in benches:
        bench.run()
