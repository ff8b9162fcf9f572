"""Cluster: the nodes of a running Ray cluster, each with an agent that starts worker programs there."""

import importlib.util
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress

from engine.cluster import messages as c
from engine.cluster.listener import Listener, check_exposed
from engine.cluster.naming import with_id
from engine.cluster.remote_node import RemoteNode
from engine.errors import ConfigError, EngineError, PoolClosed, ServerFailed, WorkerDied
from engine.owner import OwnerProcess
from engine.process.program import Program

_log = logging.getLogger(__name__)

EXTRA = (
    "more than one machine needs Ray, which is not installed: `pip install -r requirements-ray.txt`, or "
    "`pip install logitbench[cluster]`"
)
TICK_S = 0.5
LIST_S = 2.0
"""How often the cluster is asked for its nodes; one that comes back is used again."""
AUTO_S = 60.0
"""Least seconds between two searches for the cluster of this machine after the one that "auto" found has stopped
answering: each starts a program."""
_CONNECT_S, _AGENT_S, _REACH_S = 90.0, 90.0, 5.0
_ASK_S = 180.0
"""Longest wait for Ray's answer, after which the program that speaks to it is ended and another one started: longer
than Ray itself waits for a head node that does not answer (60 s)."""


class Cluster:
    """Connection to the Ray cluster at `address`, HOST:PORT or "auto" for the one of this machine.

    changed: condition that is notified when a node comes or goes. Use it as a context manager or call close().
    """

    def __init__(
        self,
        address: str,
        on_opening: Callable[[Callable[[], None]], object] = lambda _abort: None,
        on_nodes: Callable[[int, int], object] = lambda _ready, _found: None,
    ) -> None:
        """Connect, and wait for an agent on every node; `on_nodes` is called with the numbers of those ready and found.

        Raises what `on_nodes` raises; ConfigError without Ray, for an address that is none, for another version of Ray,
        and for a cluster beyond this machine without authentication; ServerFailed where nothing answers, or no node can
        be used; PoolClosed if it is closed meanwhile, by the function that `on_opening` gets.
        """
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(EXTRA)
        self.address = self._joined = address
        self._found_at = time.monotonic()
        self.changed = threading.Condition()
        self._nodes: dict[str, RemoteNode] = {}
        self._failures: dict[str, str] = {}
        self._listed = frozenset[str]()
        self._starting = set[str]()
        self._names: dict[str, str] = {}
        self._lost = set[str]()
        self._ended: dict[str, str] = {}
        self._is_over, self._is_blind = threading.Event(), False
        self._making = threading.Lock()
        self._process = OwnerProcess()
        self._ray: Program | None = None
        self._joined_by: Program | None = None
        self._listener: Listener | None = None
        on_opening(self.close)
        with opening(self):
            self._open(on_nodes)

    def _open(self, on_nodes: Callable[[int, int], object]) -> None:
        listing = self._list()
        check_exposed(listing.host, is_authenticated=listing.is_authenticated)
        with self._making:
            check_open(self)
            self._listener = Listener(listing.host)
        threading.Thread(target=self._watch, name="logitbench-cluster", daemon=True).start()
        self._welcome(listing)
        self._await_all(lambda ready: on_nodes(ready, len(listing.nodes)))
        self._shorten_names(listing.nodes)
        failures = self.failures
        for name, reason in failures.items():
            _log.warning("node %s is not used: %s", name, reason)
        if not self.nodes:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
            raise ServerFailed(f"no node of the cluster can be used ({reasons or 'it has none'})")

    def _await_all(self, tell: Callable[[int], object]) -> None:
        """Wait until no agent starts any more, at most for the time that each has; `tell` is called with the number of
        nodes ready, without the lock. A node that is late counts as failed until its agent comes."""
        end, num_ready, is_waiting = time.monotonic() + _AGENT_S, -1, True

        def is_new() -> bool:
            return len(self._nodes) != num_ready or not self._starting or self._is_over.is_set()

        while is_waiting:
            with self.changed:
                is_new_now = self.changed.wait_for(is_new, end - time.monotonic())
                is_waiting = is_new_now and bool(self._starting) and not self._is_over.is_set()
                num_ready = len(self._nodes)
            tell(num_ready)
        with self.changed:
            self._failures = dict.fromkeys(self._starting, _late()) | self._failures

    @property
    def nodes(self) -> list[RemoteNode]:
        """Nodes that can be used, in the order of their names."""
        with self.changed:
            return sorted(self._nodes.values(), key=lambda node: (node.name, node.id))

    @property
    def failures(self) -> dict[str, str]:
        """Why nodes have no agent, by their names."""
        with self.changed:
            return {self._names[id]: reason for id, reason in self._failures.items()}

    def failure_of(self, id: str) -> str:
        """Return why the node of this id has no agent; empty where it has one, or is not there."""
        return self._failures.get(id, "")

    def close(self) -> None:
        """Hang up on every agent, which ends its workers; safe to call twice, and does nothing in a fork."""
        if not self._process.is_this or self._is_over.is_set():
            return
        with self._making:  # nothing is made after this
            self._is_over.set()
        for node in self.nodes:
            node.lose("the cluster was closed")
        if self._listener is not None:
            self._listener.close()
        if self._ray is not None:
            self._ray.close()
        with self.changed:
            self.changed.notify_all()

    @property
    def is_closed(self) -> bool:
        """True once it was closed."""
        return self._is_over.is_set()

    # nodes that come and go

    def _list(self) -> c.Listing:
        """Ask Ray for the nodes, over a new connection where there is none. Raises EngineError."""
        listing: c.Listing
        if self._ray is not None and self._ray.is_alive:
            listing = self._ray.ask(c.ListNodes(), _ASK_S, self.address)
            return listing
        if self._ray is not None:
            self._ray.close()
        joined = self._reachable()
        with self._making:
            check_open(self)
            self._ray = ray = Program(
                "engine.cluster.nodes",
                does="speaks to the Ray cluster",
                answers=c.Listing | None,
                environment={"RAY_ENABLE_AUTO_CONNECT": "0"},  # it would start a cluster of its own
            )
        try:
            listing = ray.ask(c.Connect(joined), _CONNECT_S, self.address)
            if joined != self._joined:
                self._check_moved(listing)
        except BaseException:
            ray.close()
            raise
        if joined == "auto":
            self._joined = listing.address
        self._joined_by = ray
        return listing

    def _reachable(self) -> str:
        """Return the address to join: the one that was joined before, or "auto" again where nothing answers there.

        Raises ConfigError for what is no address, ServerFailed where nothing answers, and "auto" was asked lately.
        """
        try:
            check_reachable(self._joined)
        except ServerFailed:
            now = time.monotonic()
            if self.address != "auto" or now - self._found_at < AUTO_S:
                raise
            self._found_at = now
            return "auto"
        return self._joined

    def _check_moved(self, listing: c.Listing) -> None:
        """Check a cluster that "auto" found in place of another one. Raises ConfigError, ServerFailed."""
        check_exposed(listing.host, is_authenticated=listing.is_authenticated)
        if self._listener is not None and listing.host != self._listener.host:
            raise ServerFailed(
                f"the cluster of this machine is at {listing.address} now, whose nodes cannot dial "
                f"{self._listener.host}: connect again"
            )

    def _watch(self) -> None:
        """Count silence, and look for nodes; a pause of this program itself does not count."""
        before = listed = time.monotonic()
        lister: threading.Thread | None = None
        while not self._is_over.wait(TICK_S):
            now = time.monotonic()
            for node in self.nodes:
                node.tick(min(now - before, 2 * TICK_S))
            before = now
            if now - listed >= LIST_S and (lister is None or not lister.is_alive()):
                listed = now
                lister = threading.Thread(target=self._look_for_nodes, daemon=True)
                lister.start()

    def _look_for_nodes(self) -> None:
        try:
            self._welcome(self._list())
            self._is_blind = False
        except (EngineError, ValueError) as error:
            if not self._is_over.is_set() and not self._is_blind:
                _log.warning("the nodes of the cluster %s are not known at present: %s", self.address, error)
            self._is_blind = True

    def _welcome(self, listing: c.Listing) -> None:
        """Start an agent on every node that has none; note why agents have ended."""
        self._listed = frozenset(one.id for one in listing.nodes)
        self._ended.update(listing.failures)
        with self.changed:
            self._failures = {id: reason for id, reason in self._failures.items() if id in self._listed}
            new = [one for one in listing.nodes if one.id not in self._nodes and one.id not in self._starting]
            self._starting.update(one.id for one in new)
            for found in sorted(new, key=lambda one: one.id in self._names):  # those that had a name see the new ones
                self._names[found.id] = self._name(found, listing.nodes)
        for one in new:
            threading.Thread(target=self._start_agent, args=(one,), daemon=True).start()

    def _name(self, found: c.Found, listed: list[c.Found]) -> str:
        """Return the name of a node, with its id where another node of the list has the same; it keeps it if it can.

        A node that comes in place of one that was lost, and that Ray still lists, gets its name.
        """
        others = [one.id for one in listed if one.name == found.name and one.id != found.id]
        if (before := self._names.get(found.id)) is None:
            is_shared = not self._lost.issuperset(others)
        else:
            is_shared = before != found.name or any(self._names.get(other) == found.name for other in others)
        return with_id(found.name, found.id) if is_shared else found.name

    def _shorten_names(self, listed: list[c.Found]) -> None:
        """Give a node its name without its id where no other one of that name can be used: Ray still lists a node that
        was killed beside the one that was started in its place."""
        with self.changed:
            for name in {one.name for one in listed}:
                same = {one.id for one in listed if one.name == name}
                usable = same & self._nodes.keys()
                if len(same) > 1 and len(usable) == 1:
                    (id,) = usable
                    self._names[id] = self._nodes[id].name = name
                    self._lost |= same - usable

    def _start_agent(self, found: c.Found) -> None:
        """Start an agent and wait until it dials in."""
        node = None
        try:
            node = self._dialled(found)
        except Exception as error:  # whatever it is, the node is tried again
            reason = str(error) if isinstance(error, EngineError) else repr(error)
            _log.info("node %s is not used: %s", self._names[found.id], reason)
            with self.changed:
                self._failures[found.id] = reason
        with self.changed:
            self._starting.discard(found.id)
            if node is not None and not node.is_lost and not self.is_closed:
                self._failures.pop(found.id, None)
                self._nodes[found.id] = node
                self._lost.discard(found.id)
            self.changed.notify_all()
        if node is not None and self.is_closed:
            node.lose("the cluster was closed")

    def _dialled(self, found: c.Found) -> RemoteNode:
        listener = self._listener
        assert listener is not None
        token, dialled = listener.expect()
        try:
            end = self._awaited(c.StartAgent(found.id, listener.host, listener.port, token), dialled)
            return RemoteNode(found, self._names[found.id], end, listener, self._on_lost)
        finally:
            listener.forget(token)

    def _awaited(self, order: c.StartAgent, dialled: "Future[socket.socket]") -> socket.socket:
        """Start an agent and wait for its connection. Raises WorkerDied if none comes, PoolClosed after close().

        Where the program that started it was replaced, its end is no longer reported, and it may not even run: the next
        program starts another one, and the first of them that dials in is used.
        """
        end = time.monotonic() + _AGENT_S
        started_by: Program | None = None
        while time.monotonic() < end:
            ray = self._joined_by
            if ray is not None and ray is not started_by:
                started_by = ray
                self._ended.pop(order.node, None)
                with suppress(WorkerDied):  # the program that is asked has ended, and is replaced
                    ray.ask(order, _ASK_S)
            try:
                return dialled.result(TICK_S)
            except FutureTimeout:
                reason = self._ended.pop(order.node, "")
                if order.node not in self._listed:
                    raise WorkerDied("the node left the cluster before its agent had dialled in") from None
                if reason:
                    raise WorkerDied(f"its agent ended: {reason}") from None
            except CancelledError:
                raise _cancelled() from None
        raise WorkerDied(_late())

    def _on_lost(self, node: RemoteNode) -> None:
        with self.changed:
            if self._nodes.get(node.id) is node:
                del self._nodes[node.id]
                self._lost.add(node.id)
            self.changed.notify_all()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


@contextmanager
def opening(cluster: Cluster) -> Iterator[None]:
    """Close a cluster if the block fails. Raises PoolClosed in place of the error where it was closed before."""
    try:
        yield
    except BaseException as error:
        is_cancelled = cluster.is_closed
        cluster.close()
        if is_cancelled:
            raise _cancelled() from error
        raise


def check_open(cluster: Cluster) -> None:
    """Raise PoolClosed for a cluster that was closed before it could be used."""
    if cluster.is_closed:
        raise _cancelled()


def _cancelled() -> PoolClosed:
    return PoolClosed("loading was cancelled before the cluster was ready: open the pool again")


def _late() -> str:
    return f"its agent did not dial in within {_AGENT_S:g} s: see Ray's logs of that node"


def check_reachable(address: str) -> None:
    """Raise ConfigError for what is neither an address nor "auto", ServerFailed where nothing listens."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not port.isascii() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"cluster = {address[:200]!r}: must be HOST:PORT, as `ray start --head` prints it, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except (OSError, UnicodeError) as error:
        raise ServerFailed(
            f"no Ray cluster answers at {address} ({error}): start one there with `ray start --head`, or give another "
            "address"
        ) from error
