"""All nodes of a cluster measured together: one pool with a worker on each, whose requests this program sends."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from engine.bench.planning.engines import POOL
from engine.bench.planning.plan import Plan
from engine.cluster.cluster import Cluster
from engine.cluster.specs import ClusterSpec
from engine.errors import ConfigError, ServerFailed
from engine.machine.fingerprint import fingerprint_hash
from engine.protocol import NodeInfo
from engine.runs import CLUSTER
from engine.specs import PoolSpec
from engine.units import counted

_OF_ONE_MACHINE = ("layout", "build", "pin")


@dataclass(frozen=True, kw_only=True)
class Together:
    """The nodes that a plan is measured on together. address: of their cluster."""

    address: str
    nodes: tuple[NodeInfo, ...]

    @property
    def cluster(self) -> ClusterSpec:
        """Parameters of a pool with one worker on each node."""
        return ClusterSpec(address=self.address, workers={node.name: 1 for node in self.nodes})

    @property
    def origin(self) -> str:
        """Origin of a run that these nodes measured."""
        return f"{CLUSTER}{counted(len(self.nodes), 'node')}"

    @property
    def machine(self) -> dict[str, Any]:
        """The nodes as the machine of a run, with the hash of its facts; what a connection calls them is none."""
        each = {node.address: node.memory_bytes for node in self.nodes}
        facts = {
            "threads": sum(node.cores for node in self.nodes),
            "memory_bytes": sum(each.values()),
            "llama": dict(self.nodes[0].llama),
        }
        places = sorted((node.address, node.cores, node.cpu) for node in self.nodes)
        return {
            **facts,
            "name": f"{self.origin}: {', '.join(node.name for node in self.nodes)}"[:200],
            "nodes": {node.name: f"{counted(node.cores, 'core')}, {node.cpu}" for node in self.nodes},
            "hash": fingerprint_hash({**facts, "places": places}),
        }

    def plan_of(self, plan: Plan) -> Plan:
        """Return a plan for one worker on each node with all its cores, and for more users in the same proportion; one
        that was made for as many workers keeps its users.

        Raises ConfigError as `check_together` does.
        """
        check_together(plan)
        threads = min(node.cores for node in self.nodes)
        axes = dict(plan.axes)
        if "users" in axes:
            most, workers = max(axes["users"]), PoolSpec.from_dict(plan.pool).instances
            axes["users"] = (*axes["users"], *_more(most, most * len(self.nodes) // workers))
        pool = {name: value for name, value in plan.pool.items() if name != "threads_batch"}
        return replace(plan, axes=axes, pool=pool | {"instances": len(self.nodes), "threads": threads})


def check_together(plan: Plan) -> None:
    """Raise ConfigError for another question than that of users, for other engines than the pool, and for settings of
    one machine."""
    if plan.question != "users":
        raise ConfigError("only the number of users is measured on all nodes together: measure it on each node")
    if set(map(str, plan.axes.get("arm", (POOL,)))) != {POOL}:
        raise ConfigError("only the pool runs on all nodes together: leave other engines out")
    if senseless := [name for name in _OF_ONE_MACHINE if name in plan.axes or plan.pool.get(name)]:
        raise ConfigError(f"{senseless[0]}: each node runs one worker with all its cores; leave it out")
    if plan.measures_cold:
        raise ConfigError("measures_cold: loading from disk is timed on one machine; leave it out")


def connected(address: str, on_opening: Callable[[Callable[[], None]], object] = lambda _abort: None) -> Together:
    """Return the nodes of the cluster at this address, to which the connection ends again.

    Raises as Cluster does, and ServerFailed where any of its nodes cannot be used. on_opening: as for a Cluster.
    """
    with Cluster(address, on_opening) as cluster:
        if failures := cluster.failures:
            reasons = "; ".join(f"node {name}: {reason}" for name, reason in sorted(failures.items()))
            raise ServerFailed(
                f"{counted(len(failures), 'node')} of the cluster cannot be used: {reasons}; mend or stop it, then "
                "measure all nodes together"
            )
        return Together(address=cluster.address, nodes=tuple(node.info() for node in cluster.nodes))


def _more(users: int, most: int) -> Iterator[int]:
    """Yield larger numbers of users, doubled each time, up to `most`."""
    while users < most:
        users = min(2 * users, most)
        yield users
