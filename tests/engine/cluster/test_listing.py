"""The list of nodes: no program is started for it while no cluster answers, the names it gives, who is notified."""

import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import msgspec
import pytest

from engine.cluster import cluster as clusters
from engine.cluster import messages as c
from engine.cluster.cluster import Cluster
from engine.cluster.listener import Listener, dial
from engine.errors import ServerFailed, WorkerDied
from tests.processes import free_port
from tests.waiting import until

pytest.importorskip("ray")


def listing(*nodes: tuple[str, str], address: str = "127.0.0.1:1") -> c.Listing:
    """The list of nodes with these ids and names."""
    return c.Listing([c.Found(*node, "127.0.0.1", 1) for node in nodes], "127.0.0.1", {}, False, address)


def unopened(monkeypatch: pytest.MonkeyPatch, address: str) -> Cluster:
    """A cluster that has not connected."""
    monkeypatch.setattr(Cluster, "_open", lambda _self, _on_nodes: None)
    return Cluster(address)


def test_a_cluster_that_is_away_is_reported_once_and_costs_no_program(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def made(*_given: object, **_more: object) -> None:
        raise AssertionError("a program was started")

    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setattr(clusters, "Program", made)
    with pytest.raises(ServerFailed, match="no Ray cluster answers"):
        Cluster(address)
    with unopened(monkeypatch, address) as cluster, caplog.at_level(logging.WARNING):
        for _ in range(3):
            cluster._look_for_nodes()
        assert [record.getMessage() for record in caplog.records if "not known" in record.getMessage()][1:] == []
        with monkeypatch.context() as patch:
            patch.setattr(cluster, "_list", lambda: listing(address=address))
            cluster._look_for_nodes()
        cluster._look_for_nodes()
        assert sum("not known at present" in record.getMessage() for record in caplog.records) == 2


def test_a_cluster_found_by_auto_costs_no_program_once_it_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    found, made = f"127.0.0.1:{free_port()}", []

    class Ray:
        """Program whose connection ends after the first answer."""

        is_alive = False

        def __init__(self, *_given: object, **_more: object) -> None:
            made.append(self)

        def ask(self, *_asked: object) -> c.Listing:
            return listing(address=found)

        def close(self) -> None: ...

    monkeypatch.setattr(clusters, "Program", Ray)
    with unopened(monkeypatch, "auto") as cluster:
        cluster._list()
        for _ in range(3):
            with pytest.raises(ServerFailed, match=f"no Ray cluster answers at {found}"):
                cluster._list()
    assert len(made) == 1


class Rejoined:
    """Program that finds a cluster at a new address each time and ends. joined: where it was to connect."""

    is_alive = False

    def __init__(self, *hosts: str) -> None:
        self.joined: list[str] = []
        self.found = [f"127.0.0.1:{free_port()}" for _host in hosts]
        self._hosts = hosts

    def __call__(self, *_given: object, **_more: object) -> "Rejoined":
        return self

    def ask(self, request: c.Connect, *_asked: object) -> c.Listing:
        number = len(self.joined)
        self.joined.append(request.address)
        return msgspec.structs.replace(listing(address=self.found[number]), host=self._hosts[number])

    def close(self) -> None: ...


def test_a_cluster_found_by_auto_is_looked_for_anew_once_it_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Rejoined("127.0.0.1", "127.0.0.1", "127.0.0.2")
    monkeypatch.setattr(clusters, "Program", ray)
    with unopened(monkeypatch, "auto") as cluster:
        cluster._list()
        cluster._listener = Listener("127.0.0.1")
        with pytest.raises(ServerFailed, match=f"no Ray cluster answers at {ray.found[0]}"):
            cluster._list()
        monkeypatch.setattr(clusters, "AUTO_S", 0.0)
        assert cluster._list().address == ray.found[1]
        with pytest.raises(ServerFailed, match=f"is at {ray.found[2]} now.* dial 127.0.0.1: connect again"):
            cluster._list()
    assert ray.joined == ["auto"] * 3


def test_a_cluster_that_was_named_is_looked_for_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "Program", Rejoined())
    monkeypatch.setattr(clusters, "AUTO_S", 0.0)
    with unopened(monkeypatch, address := f"127.0.0.1:{free_port()}") as cluster:
        for _ in range(2):
            with pytest.raises(ServerFailed, match=f"no Ray cluster answers at {address}"):
                cluster._list()


def test_nodes_of_one_name_are_named_by_the_list_and_reported_without_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_self: Cluster, _found: c.Found) -> None:
        raise WorkerDied("it does not start")

    monkeypatch.setattr(Cluster, "_list", lambda _self: listing(("a" * 8, "x"), ("b" * 8, "x"), ("c" * 8, "y")))
    monkeypatch.setattr(Cluster, "_dialled", refused)
    opened: list[Callable[[], None]] = []
    counts: list[tuple[int, int]] = []

    def tell(ready: int, found: int) -> None:
        cluster = opened[0].__self__  # type: ignore[attr-defined]  # its method `close`
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(lambda: cluster.nodes).result(60) == []
        counts.append((ready, found))

    with pytest.raises(ServerFailed) as caught:
        Cluster("127.0.0.1:1", opened.append, tell)
    for name in ("x (aaaaaa)", "x (bbbbbb)", "y"):
        assert f"{name}: it does not start" in str(caught.value)
    assert set(counts) == {(0, 3)}


class Dialled:
    """A node whose agent has dialled in."""

    is_lost = False

    def __init__(self, found: c.Found, name: str) -> None:
        self.id, self.name = found.id, name

    def lose(self, _reason: str) -> None: ...


@pytest.mark.parametrize(
    ("usable", "names"),
    [("2", ["x", "y"]), ("23", ["x (222222)", "x (333333)", "y"])],
    ids=["one that was killed is still listed", "two that run"],
)
def test_a_name_is_shared_only_by_nodes_that_can_be_used(
    monkeypatch: pytest.MonkeyPatch, usable: str, names: list[str]
) -> None:
    listed = [("1" * 8, "x"), ("2" * 8, "x"), ("3" * 8, "x"), ("4" * 8, "y")]

    def dialled(cluster: Cluster, found: c.Found) -> Any:
        if found.id[0] not in f"{usable}4":
            raise WorkerDied("its node is dead")
        return Dialled(found, cluster._names[found.id])

    monkeypatch.setattr(Cluster, "_list", lambda _self: listing(*listed))
    monkeypatch.setattr(Cluster, "_dialled", dialled)
    monkeypatch.setattr(Cluster, "_watch", lambda _self: None)
    with Cluster("127.0.0.1:1") as cluster:
        assert [node.name for node in cluster.nodes] == names
        assert "x (111111)" in cluster.failures
        usable += "1"  # the one that was given up starts after all
        cluster._welcome(listing(*listed))
        until(lambda: len(cluster.nodes) == len(names) + 1, "the late node is not used")
        assert [node.name for node in cluster.nodes] == sorted([*names, "x (111111)"])
        until(lambda: not cluster._starting, "an agent still starts")
        cluster._welcome(listing(listed[0]))
        assert cluster.failures == {}


class Silent:
    """Program that starts agents that never dial in, and says nothing of them."""

    is_alive = True

    def ask(self, *_asked: object) -> None: ...

    def close(self) -> None: ...


def test_an_agent_is_awaited_only_while_its_node_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ("1" * 8, "x"), ("2" * 8, "y")
    with unopened(monkeypatch, "127.0.0.1:1") as cluster:
        cluster._listener, cluster._joined_by = Listener("127.0.0.1"), Silent()  # type: ignore[assignment]
        cluster._welcome(listing(first, second))
        cluster._welcome(listing(second))
        until(lambda: cluster._starting == {second[0]}, "an agent of a node that left is awaited")
        assert cluster.failures == {"x": "the node left the cluster before its agent had dialled in"}
        assert cluster.failure_of(first[0]) and not cluster.failure_of(second[0])


class Speaker:
    """Program that speaks to Ray, and lists one node. does: what becomes of the agents that it starts there, which it
    reports to nobody. asked: what it was asked, in order."""

    def __init__(self, does: Literal["nothing", "fails", "dials"]) -> None:
        self.is_alive, self._does = True, does
        self.asked: list[c.ToRay] = []
        self.agents: list[socket.socket] = []

    @property
    def started(self) -> list[c.StartAgent]:
        return [one for one in self.asked if isinstance(one, c.StartAgent)]

    def ask(self, request: c.ToRay, *_more: object) -> c.Listing | None:
        self.asked.append(request)
        if isinstance(request, c.StartAgent):
            if self._does == "dials":
                self.agents.append(dial(request.host, request.port, request.token))
            return None
        failures = {one.node: "no disk" for one in self.started if self._does == "fails"}
        return msgspec.structs.replace(listing(("1" * 8, "x")), failures=failures)

    def close(self) -> None:
        for agent in self.agents:
            agent.close()


@pytest.mark.parametrize(
    ("does", "failures"), [("fails", {"x": "its agent ended: no disk"}), ("dials", {})], ids=["fails", "dials in"]
)
def test_an_agent_is_started_anew_by_the_next_program_that_speaks_to_ray(
    monkeypatch: pytest.MonkeyPatch, does: Literal["fails", "dials"], failures: dict[str, str]
) -> None:
    def greeted(found: c.Found, name: str, end: socket.socket, *_more: object) -> Dialled:
        end.close()
        return Dialled(found, name)

    first, second = made = [Speaker("nothing"), Speaker(does)]
    programs = iter(made)
    monkeypatch.setattr(clusters, "Program", lambda *_given, **_more: next(programs))
    monkeypatch.setattr(clusters, "RemoteNode", greeted)
    monkeypatch.setattr(clusters, "check_reachable", lambda _address: None)
    with unopened(monkeypatch, "127.0.0.1:1") as cluster:
        cluster._listener = Listener("127.0.0.1")
        cluster._look_for_nodes()
        until(lambda: first.started, "no agent is started")
        first.is_alive = False
        cluster._look_for_nodes()
        until(lambda: second.started, "an agent is awaited whose end is reported to nobody")
        assert isinstance(second.asked[0], c.Connect)
        cluster._look_for_nodes()
        until(lambda: not cluster._starting, "its end is not noticed")
        assert cluster.failures == failures and len(cluster.nodes) == (not failures)


def test_a_node_that_is_late_counts_as_failed_until_its_agent_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    comes = {id: threading.Event() for id in ("1" * 8, "2" * 8)}

    def dialled(cluster: Cluster, found: c.Found) -> Any:
        assert comes[found.id].wait(60)
        return Dialled(found, cluster._names[found.id])

    def tell(ready: int, _found: int) -> None:
        if not ready:
            comes["1" * 8].set()
            until(lambda: opened[0].__self__.nodes, "the first node is not used")  # type: ignore[attr-defined]

    opened: list[Callable[[], None]] = []
    monkeypatch.setattr(clusters, "_AGENT_S", 0.0)
    monkeypatch.setattr(Cluster, "_list", lambda _self: listing(("1" * 8, "x"), ("2" * 8, "y")))
    monkeypatch.setattr(Cluster, "_dialled", dialled)
    monkeypatch.setattr(Cluster, "_watch", lambda _self: None)
    with Cluster("127.0.0.1:1", opened.append, tell) as cluster:
        assert [node.name for node in cluster.nodes] == ["x"]
        assert cluster.failures == {"y": "its agent did not dial in within 0 s: see Ray's logs of that node"}
        comes["2" * 8].set()
        until(lambda: len(cluster.nodes) == 2, "the late node is not used")
        assert cluster.failures == {}


def test_a_node_keeps_its_name_and_one_in_place_of_a_lost_one_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = ("1" * 8, "x"), ("2" * 8, "x"), ("3" * 8, "x")
    with unopened(monkeypatch, "127.0.0.1:1") as cluster:
        monkeypatch.setattr(cluster, "_start_agent", lambda _found: None)

        def names(*nodes: tuple[str, str]) -> list[str]:
            cluster._starting.clear()
            cluster._welcome(listing(*nodes))
            return [cluster._names[id] for id, _name in nodes]

        assert names(first) == ["x"]
        cluster._lost.add(first[0])
        assert names(first, second) == ["x (111111)", "x"]
        assert names(first, second, third) == ["x (111111)", "x", "x (333333)"]
