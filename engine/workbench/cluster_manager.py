"""Cluster manager: connects to a cluster in the background, so that its nodes are seen before a model loads there."""

import threading
from collections.abc import Callable, Mapping
from importlib.util import find_spec

from engine.cluster.cluster import EXTRA, Cluster
from engine.cluster.specs import ClusterSpec
from engine.errors import ConfigError
from engine.protocol import NodeInfo, SpreadEngine
from engine.tasks import Task, TaskRunner
from engine.units import counted

OpenCluster = Callable[[str, Callable[[Callable[[], None]], object], Callable[[int, int], object]], Cluster]


class Connecting(Task[Cluster]):
    """Task that connects to the cluster at an address; a stop closes the connection."""

    def __init__(self, address: str, open_cluster: OpenCluster) -> None:
        super().__init__("Connecting to the cluster", lambda _task: self._connect())
        self.address, self._open = address, open_cluster

    def _connect(self) -> Cluster:
        self.update(doing="asking Ray for its nodes")
        cluster = self._open(self.address, self.on_stop, self._tell)
        if self.is_stopped:
            cluster.close()
        self.check()
        return cluster

    def _tell(self, ready: int, found: int) -> None:
        self.report(ready / max(found, 1), f"{ready} of {counted(found, 'node')} ready", None)


class Changing(Task[None]):
    """Task that gives nodes other numbers of workers while a model runs there; a stop takes effect between two."""

    def __init__(self, engine: SpreadEngine, counts: Mapping[str, int]) -> None:
        super().__init__("Changing the workers", lambda _task: self._change())
        self._engine, self._counts = engine, dict(counts)

    def _change(self) -> None:
        """Add first, so that jobs always have a worker."""
        now = {node.name: node.num_workers for node in self._engine.nodes()}
        change = {name: count - now.get(name, 0) for name, count in self._counts.items()}
        added = [name for name, more in change.items() for _ in range(more)]
        removed = [name for name, more in change.items() for _ in range(-more)]
        total = len(added) + len(removed)
        for number, name in enumerate(added):
            self.update(number / total, f"starting a worker on {name}")
            self._engine.add_worker(name)
        for number, name in enumerate(removed):
            self.update((len(added) + number) / total, f"ending a worker on {name}")
            self._engine.remove_worker(name)


class ClusterManager:
    """Connection to one cluster, from `connect` until `disconnect`; changes of a loaded model's workers. Any thread may
    call it."""

    def __init__(self, open_cluster: OpenCluster = Cluster) -> None:
        self._open = open_cluster
        self._runner, self._changes = TaskRunner[Connecting](), TaskRunner[Changing]()
        self._lock = threading.Lock()

    @property
    def missing(self) -> str:
        """What this installation lacks for clusters and how to get it, as a sentence; empty where it lacks nothing."""
        return "" if find_spec("ray") else f"{EXTRA[0].upper()}{EXTRA[1:]}."

    @property
    def task(self) -> Connecting | None:
        """The running connection attempt, else the last one until `disconnect`."""
        return self._runner.last

    @property
    def address(self) -> str:
        """Address of the cluster that is connected; empty where none is."""
        task = self._runner.last
        return task.address if task is not None and self._cluster(task) is not None else ""

    @property
    def nodes(self) -> list[NodeInfo]:
        """Nodes of the connected cluster, without any worker; empty where none is connected."""
        task = self._runner.last
        cluster = None if task is None else self._cluster(task)
        return [] if cluster is None else [node.info() for node in cluster.nodes]

    @property
    def failures(self) -> dict[str, str]:
        """Why nodes of the connected cluster cannot be used, by name."""
        task = self._runner.last
        cluster = None if task is None else self._cluster(task)
        return {} if cluster is None else dict(cluster.failures)

    def connect(self, address: str) -> None:
        """Connect in the background; progress and failure are those of `task`.

        Raises ConfigError without Ray, for what is no address, and while another attempt runs.
        """
        if self.missing:
            raise ConfigError(self.missing)
        spec = ClusterSpec(address=address)
        with self._lock:
            self._hang_up()
            self._runner.start(Connecting(spec.address, self._open))

    def disconnect(self) -> None:
        """Stop connecting, or hang up; does not wait."""
        with self._lock:
            self._runner.stop()
            self._hang_up()
            self._runner.dismiss()

    @property
    def changing(self) -> Changing | None:
        """The running change of workers, else the last one."""
        return self._changes.last

    def change(self, engine: SpreadEngine, counts: Mapping[str, int]) -> None:
        """Give nodes these numbers of workers, by name, in the background.

        Raises ConfigError for numbers that are none, without any worker, and while another change runs.
        """
        ClusterSpec(workers=counts)
        self._changes.start(Changing(engine, counts))

    def close(self) -> None:
        """Hang up, and wait for an attempt to end."""
        self._changes.close()
        self._runner.close()
        self.disconnect()

    def _hang_up(self) -> None:
        task = self._runner.last
        cluster = None if task is None else self._cluster(task)
        if cluster is not None:
            threading.Thread(target=cluster.close, name="logitbench-cluster-close", daemon=True).start()

    def _cluster(self, task: Connecting) -> Cluster | None:
        """Return the cluster of an attempt that succeeded and is still connected."""
        if task.is_running or task.error is not None:
            return None
        cluster = task.result()
        return None if cluster.is_closed else cluster
