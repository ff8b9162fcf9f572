"""All nodes measured together: the plan that is made for them, what is refused, and a run on real nodes of Ray."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from engine.bench.planning.plan import Plan
from engine.bench.planning.presets import preset
from engine.bench.planning.together import Together, connected
from engine.bench.running.session import Session
from engine.errors import ConfigError, ServerFailed
from engine.models import embedded_model
from engine.protocol import NodeInfo
from tests.engine.bench.desk import Keeper
from tests.engine.cluster.nodes_here import cluster_here
from tests.ray_cluster import RayCluster, ray_cluster

MODEL = str(embedded_model())


def node(name: str, cores: int = 2, address: str = "10.0.0.1") -> NodeInfo:
    return NodeInfo(name, address, cores, 8 << 30, 4 << 30, "a processor", {"llama": "b1"}, 0, "")


def nodes(*found: NodeInfo) -> Together:
    return Together(address="10.0.0.1:6379", nodes=found)


def users_plan(**options: Any) -> Plan:
    workload = {"num_prompt": 8, "num_generated": 4, "duration_s": 0.5}
    return Plan(**{"question": "users", "model": MODEL, "axes": {"users": (1, 2)}, "workload": workload, **options})


def test_each_node_has_a_worker_and_there_are_as_many_times_more_users() -> None:
    together = nodes(node("a", 4), node("b", 2), node("c", 4, "10.0.0.2"))
    plan = together.plan_of(preset("users", MODEL))
    assert plan.axes["users"] == (1, 2, 4, 8, 16, 32, 64, 96)
    assert (plan.pool["instances"], plan.pool["threads"]) == (3, 2)
    assert together.cluster.workers == {"a": 1, "b": 1, "c": 1}
    assert together.origin == "cluster of 3 nodes"
    assert together.machine["memory_bytes"] == 2 * (8 << 30)  # a and b are one machine
    assert together.machine["name"] == "cluster of 3 nodes: a, b, c"
    assert together.machine["hash"] != nodes(node("a", 4)).machine["hash"]


def test_nodes_are_the_same_machine_whatever_a_connection_calls_them() -> None:
    def hash_of(*names: str, last: str = "10.0.0.3") -> str:
        given = zip(names, (4, 2, 2), ("10.0.0.1", "10.0.0.2", last), strict=True)
        return str(nodes(*(node(*one) for one in given)).machine["hash"])

    first = hash_of("a", "b", "c")
    assert hash_of("a (111111)", "x", "c") == first
    assert hash_of("a", "b", "c", last="10.0.0.4") != first
    both = node("b", 2, "10.0.0.2"), node("c", 2, "10.0.0.3")
    assert nodes(*both).machine["hash"] == nodes(*reversed(both)).machine["hash"]


def test_a_plan_that_was_made_for_nodes_is_made_for_others_in_proportion() -> None:
    both, four = nodes(node("a"), node("b")), nodes(*map(node, "abcd"))
    once = both.plan_of(users_plan())
    assert once.axes["users"] == (1, 2, 4) and both.plan_of(once) == once
    assert four.plan_of(once).axes["users"] == (1, 2, 4, 8)
    assert both.plan_of(four.plan_of(once)).axes["users"] == (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"question": "speed", "axes": {}}, "only the number of users"),
        ({"axes": {"users": (1,), "arm": ("pool", "create_completion")}}, "only the pool"),
        ({"axes": {"users": (1,), "layout": ("1x2",)}}, "layout"),
        ({"pool": {"pin": True}}, "pin"),
        ({"measures_cold": True}, "measures_cold"),
    ],
)
def test_what_makes_no_sense_on_all_nodes_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nodes(node("a")).plan_of(users_plan(**options))


def test_memory_and_cores_of_this_machine_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.models.memory.available_memory", lambda: 1 << 20)
    with pytest.raises(ConfigError, match="memory"):
        Session(users_plan(), Keeper())
    session = Session(users_plan(), Keeper(), together=nodes(node("a", 64), node("b", 64)))
    assert [cell.settings["layout"] for cell in session.record.cells] == ["2x64"] * 3
    assert session.record.origin == "cluster of 2 nodes"


def test_a_cluster_with_a_node_that_is_not_ready_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with cluster_here(tmp_path, "a", "b") as cluster:
        monkeypatch.setattr("engine.bench.planning.together.Cluster", lambda *_given: nullcontext(cluster))
        assert [one.name for one in connected("here").nodes] == ["a", "b"]
        cluster.failures["c"] = "its agent did not start"
        with pytest.raises(ServerFailed, match="1 node of the cluster cannot be used: node c: its agent did not start"):
            connected("here")


@pytest.fixture(scope="module")
def ray() -> Iterator[RayCluster]:
    pytest.importorskip("ray")
    with ray_cluster("a", "b") as cluster:
        yield cluster


@pytest.mark.slow
def test_the_users_of_all_nodes_are_counted_through_one_front(ray: RayCluster) -> None:
    together = connected(ray.address)
    assert [one.name for one in together.nodes] == ["a", "b"]
    session = Session(users_plan(rounds=1), Keeper(), together=together)
    run = session.run()
    assert run.status == "done" and [cell.settings["users"] for cell in run.cells] == [1, 2, 4]
    assert not any(cell.reason for cell in run.cells)
    assert (run.samples["tokens_per_s"] > 0).all() and (run.samples["pss_bytes"] > 0).all()
    assert run.outcome["sentence"].startswith("The cluster of 2 nodes serves ")
