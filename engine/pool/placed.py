"""Places of a pool's workers on the nodes of a cluster: which worker runs where, and where its replacement goes."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from engine.cluster.cluster import Cluster, check_open, opening
from engine.cluster.messages import WAITED_S
from engine.cluster.model_files import Tell
from engine.cluster.model_on_nodes import ModelOnNodes
from engine.cluster.naming import node_called
from engine.cluster.node_memory import check_fits_on
from engine.cluster.remote_node import RemoteNode
from engine.cluster.specs import ClusterSpec, spread
from engine.errors import ConfigError, EngineError, MemoryRefused, ModelError, PoolClosed, ServerFailed
from engine.machine.fingerprint import SOURCES, difference, sources, versions
from engine.models.folder_specs import PACKAGES, is_by_transformers
from engine.models.gguf import ModelFile
from engine.pool import messages as m
from engine.pool.places import NotNow, Started, order_for, program_of
from engine.pool.worker_link import WorkerLink
from engine.process.channel import Channel
from engine.protocol import NodeInfo
from engine.specs import PoolSpec
from engine.units import counted

NO_NODE_S = 30.0
"""How long a pool without any worker waits for a node before it ends."""
_COMPARED = ("llama", "ggml", "commit", "features")
_OWN = "logitbench"


class OnNodes:
    """Nodes of a cluster, with the workers of one pool.

    A worker that ends is replaced on its node; one whose node is lost or cannot run it, on a node with cores to spare
    that the cluster's spec does not leave out, or on its own once that comes back. spec: with `instances` as the
    cluster's spec asks.
    """

    def __init__(
        self,
        cluster: Cluster,
        asked: ClusterSpec,
        file: ModelFile,
        spec: PoolSpec,
        build: str,
        prefill_share: int,
        on_sending: Tell,
    ) -> None:
        """Decide the places, check versions and memory of the nodes, and send the files that they lack.

        Raises ConfigError, ModelError, MemoryRefused, WorkerDied.
        """
        self._cluster, self._asked, self._file = cluster, asked, file
        self._build, self._prefill_share = build, prefill_share
        self._lock = threading.Lock()
        if spec.pin:
            raise ConfigError("pin: the workers on nodes of a cluster are not pinned to cores; leave it out")
        nodes = cluster.nodes
        if not nodes:
            raise ServerFailed(f"no node of the cluster {cluster.address} is there any more: open the model again")
        counts = _counts(nodes, asked, spec.instances)
        self._chosen = {name for name, num in counts.items() if num} if asked.workers else set()
        self.spec = replace(spec, instances=sum(counts.values()))
        used = [node for node in nodes if counts[node.name]]
        self._llama = self._llama_of(used[0])
        there, here = used[0].hello.versions, versions()
        ran = PACKAGES if is_by_transformers(file, spec) else ()
        own = {_OWN: here.get(_OWN, ""), SOURCES: sources()}
        self._packages = own | {name: there.get(name, "") for name in ran}
        self._check_alike(used)
        self._places: dict[int, str] = dict(enumerate(name for name, num in counts.items() for _ in range(num)))
        self._threads = {node.name: spec.threads or max(1, node.cores // counts[node.name]) for node in used}
        self.threads = max(self._threads.values())
        self._check_memory(used, counts)
        self._model = ModelOnNodes(file)
        self._model.send(used, on_sending)

    @property
    def patience_s(self) -> float:
        """How long a worker is waited for whose node is not there, while no other runs."""
        return NO_NODE_S

    def start(self, index: int, *, is_again: bool = False) -> Started:
        """Start a worker on its node, or on another one that has room, which goes first where the last start failed.

        Raises NotNow where no node has room, or it was lost meanwhile; PoolClosed once the cluster is closed; the
        error of the node.
        """
        if self._cluster.is_closed:
            raise PoolClosed("the start of a worker was cancelled: the pool was closed")
        node = self._place(index, is_again)
        if node is None:
            raise NotNow(
                ModelError(
                    f"no node of the cluster {self._cluster.address} has room for a worker, and its node "
                    f"{self._places.get(index, '')} is not there: start it again with `ray start`, and open the model "
                    "again"
                )
            )
        try:
            return self._start_on(node, is_again)
        except EngineError as error:
            if node.is_lost:
                raise NotNow(error) from error
            raise

    def wait(self, longest_s: float) -> None:
        """Wait until a node comes or goes, or the cluster is closed."""
        with self._cluster.changed:
            if not self._cluster.is_closed:
                self._cluster.changed.wait(longest_s)

    def close(self) -> None:
        """Hang up on the cluster."""
        self._cluster.close()

    # nodes as seen from outside

    def nodes(self, counts: Mapping[str, int]) -> list[NodeInfo]:
        """Return the nodes; counts: workers that run on each, by name."""
        return [self._info(node, counts.get(node.name, 0)) for node in self._cluster.nodes]

    def _info(self, node: RemoteNode, num_workers: int) -> NodeInfo:
        reason = self._difference(node, self._llama_at(node))
        return node.info(num_workers, *(("", reason) if self._asked.mixed else (reason, "")))

    def add(self, name: str) -> int:
        """Reserve a place on a node, the one with the most cores left where `name` is empty; return its index.

        Raises ConfigError for an unknown node or one that may not be used, ModelError, MemoryRefused.
        """
        usable = [node for node in self._cluster.nodes if not self._reason_against(node)]
        candidates = [node_called(usable, name)] if name else usable
        if not candidates:
            raise ConfigError("no node of the cluster can be used for another worker at present")
        with self._lock:
            counts = Counter(self._places.values())
            node = min(candidates, key=lambda one: (counts[one.name] + 1) / one.cores)
            index = max(self._places, default=-1) + 1
            self._places[index] = node.name
        try:
            self._check_alike([node])
            self._check_memory([node], {node.name: 1})
            self._model.path_on(node)
        except BaseException:
            self.give_up(index)
            raise
        with self._lock:
            self._chosen |= {node.name} if self._chosen else set()
            self._threads[node.name] = self.spec.threads or max(1, node.cores // (counts[node.name] + 1))
        return index

    def give_up(self, index: int) -> None:
        """Release the place of a worker that has ended for good."""
        with self._lock:
            self._places.pop(index, None)

    # places

    def _place(self, index: int, is_again: bool) -> RemoteNode | None:
        """Return the node for a worker: its own, else another with cores to spare; the other way where it is again."""
        nodes = [node for node in self._cluster.nodes if node.silent_s < WAITED_S and not self._reason_against(node)]
        with self._lock:
            name = self._places.get(index, "")
            own = min((node for node in nodes if node.name == name), key=lambda node: node.silent_s, default=None)
            if own is not None and not is_again:
                return own
            taken = Counter(self._places.values())
            spare = {node.id: node.cores - taken[node.name] * self._threads_on(node) for node in nodes}
            fitting = [node for node in nodes if node.name != name and spare[node.id] >= self._threads_on(node)]
            if self._chosen:
                fitting = [node for node in fitting if node.name in self._chosen]
            best = max(filter(self._has_memory, fitting), key=lambda node: spare[node.id], default=None)
            if best is not None:
                self._places[index] = best.name
            return best or own

    def _threads_on(self, node: RemoteNode) -> int:
        return self._threads.get(node.name) or self.spec.threads or node.cores

    def _start_on(self, node: RemoteNode, is_again: bool) -> Started:
        if is_again:
            self._model.forget(node)  # its files may be what failed
        path = self._model.path_on(node)
        order = order_for(path, self.spec, self._threads_on(node), self._prefill_share)
        worker = node.start_worker(program_of(self._file, self.spec), self._build)
        link = WorkerLink(Channel(worker.socket, m.ToPool), worker, worker.heartbeat)
        return Started(order, link, node.name)

    # what a node must have

    def _llama_of(self, node: RemoteNode) -> dict[str, str]:
        llama: dict[str, str] = node.ask("about_llama", self._build) if self._build else node.hello.llama
        if "error" in llama:
            raise ConfigError(f"node {node.name}: {llama['error']}")
        return llama

    def _check_alike(self, nodes: list[RemoteNode]) -> None:
        for node in [] if self._asked.mixed else nodes:
            if reason := self._difference(node, self._llama_of(node)):
                raise ConfigError(
                    f"node {node.name} {reason}: the same request could give other digits there. Install the same on "
                    "every node, or allow mixed nodes"
                )

    def _reason_against(self, node: RemoteNode) -> str:
        """Return why a node may not be used beside the others, as a predicate; empty where it may.

        Libraries of a `build` are compared when a pool opens and when a worker is added, as each node must be asked.
        """
        return "" if self._asked.mixed else self._difference(node, self._llama_at(node))

    def _llama_at(self, node: RemoteNode) -> dict[str, str]:
        """Return what is known of a node's llama.cpp without asking; of a `build` that it is the same."""
        return self._llama if self._build else node.hello.llama

    def _difference(self, node: RemoteNode, llama: Mapping[str, str]) -> str:
        """Return in what a node's packages or llama.cpp differ, as a predicate; empty where they do not."""
        theirs = {name: node.hello.versions.get(name, "") for name in self._packages}
        if differing := difference(theirs, self._packages):
            return f"has another {differing}"
        for part in _COMPARED:
            own, other = self._llama.get(part, ""), llama.get(part, "")
            if own != other:
                return f"has another llama.cpp ({part}: {other or 'unknown'} instead of {own or 'unknown'})"
        return ""

    def _has_memory(self, node: RemoteNode) -> bool:
        """Return whether one more worker fits into the memory of a node."""
        try:
            self._check_memory([node], {node.name: 1})
        except MemoryRefused:
            return False
        return True

    def _check_memory(self, nodes: list[RemoteNode], counts: Mapping[str, int]) -> None:
        """Raise MemoryRefused for a machine without enough memory for its workers; nodes of one address share it."""
        by_machine: dict[str, list[RemoteNode]] = {}
        for node in nodes:
            by_machine.setdefault(node.address, []).append(node)
        for here in by_machine.values():
            spec = replace(self.spec, instances=sum(counts[node.name] for node in here))
            check_fits_on(here[0].name, min(node.free_bytes for node in here), self._file, spec)


def on_nodes(
    asked: ClusterSpec,
    file: ModelFile,
    spec: PoolSpec,
    build: str,
    prefill_share: int,
    on_sending: Tell,
    on_opening: Callable[[Callable[[], None]], object],
) -> OnNodes:
    """Connect to the cluster, decide the places and send what nodes lack; it is closed again if that fails.

    on_sending: called with the share of the files that is there, 0 to 1, and what is done, in words. Raises
    EngineError, PoolClosed if aborted.
    """
    on_sending(0.0, "connecting to the cluster")
    cluster = Cluster(
        asked.address, on_opening, lambda ready, found: on_sending(0.0, f"{ready} of {counted(found, 'node')} ready")
    )

    def report(share: float, doing: str) -> None:
        check_open(cluster)
        on_sending(share, doing)

    with opening(cluster):
        found = OnNodes(cluster, asked, file, spec, build, prefill_share, report)
        on_sending(1.0, "loading the model")
        check_open(cluster)  # its nodes count as lost once it is closed, and the loss of nodes ends no opening
        return found


def _counts(nodes: list[RemoteNode], asked: ClusterSpec, instances: int) -> dict[str, int]:
    """Return the number of workers of each node, by name. Raises ConfigError for a name of no node, or of several."""
    if not asked.workers:
        instances = instances if instances > 1 else len(nodes)
        return dict(zip([node.name for node in nodes], spread(instances, [one.cores for one in nodes]), strict=True))
    counts = {node.name: 0 for node in nodes}
    for name, num in asked.workers.items():
        counts[node_called(nodes, name).name] += num
    return counts


def halves(
    report: Callable[[float], object], on_step: Callable[[str], object]
) -> tuple[Tell, Callable[[float], object]]:
    """Return what reports the first half of a load, which is reported in words too, and what reports the second."""

    def first(share: float, doing: str) -> None:
        report(share / 2)
        on_step(doing)

    return first, lambda share: report(0.5 + share / 2)
