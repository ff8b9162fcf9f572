"""Benchmarks over nodes of a workbench: one at a time, stored in one group, stopped, and its failures reported."""

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from engine.bench.planning.plan import Plan
from engine.bench.planning.together import connected
from engine.cluster.cluster import TICK_S
from engine.errors import ConfigError, HistoryError, PoolClosed, ServerFailed
from engine.history.runs import Runs
from engine.models import embedded_model
from engine.runs import RunRecord
from engine.settings import Settings
from engine.tasks import Task
from engine.workbench import Workbench
from engine.workbench.machine_lease import MachineBusy
from engine.workbench.nodes_bench_manager import NodesBench, plan_of
from tests.engine.cluster.nodes_here import ClusterHere, cluster_here
from tests.engine.history.run_maker import make_run
from tests.waiting import until

PLAN = Plan(
    model=str(embedded_model()), axes={"layout": ("1x1",)}, workload={"num_prompt": 8, "num_generated": 4}, rounds=1
)
USERS = Plan(question="users", model=str(embedded_model()), axes={"users": (1, 2)})


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ClusterHere]:
    """Two nodes, a and b, which hear from the front as from a real cluster."""
    is_over = threading.Event()
    with cluster_here(tmp_path, "a", "b") as one:

        def watch() -> None:
            while not is_over.wait(TICK_S):
                for node in list(one.nodes):
                    node.tick(0.0)

        threading.Thread(target=watch, daemon=True).start()
        monkeypatch.setattr(ClusterHere, "__enter__", lambda self: self, raising=False)
        monkeypatch.setattr(ClusterHere, "__exit__", lambda self, *_error: self.close(), raising=False)
        monkeypatch.setattr("engine.over_nodes.cluster_bench.Cluster", lambda _address, _on_opening: one)
        yield one
        is_over.set()


@pytest.fixture
def bench(home: Path) -> Iterator[Workbench]:
    opened = Workbench(Settings.from_environment())
    yield opened
    opened.close()


def connecting(bench: Workbench) -> Task[object]:
    """The connection before all nodes measure together."""
    bench.bench.start_together(USERS, "here")
    task = bench.bench.background.last
    assert task is not None
    return task


def started(bench: Workbench, plan: Plan = PLAN) -> NodesBench:
    bench.nodes_bench.start(plan, "here")
    task = bench.nodes_bench.running
    assert task is not None
    return task


@pytest.mark.slow
def test_runs_of_all_nodes_are_one_group_and_nothing_else_runs_meanwhile(
    bench: Workbench, cluster: ClusterHere
) -> None:
    task = started(bench)
    with pytest.raises(ConfigError, match="still running"):
        bench.nodes_bench.start(PLAN, "here")
    with pytest.raises(MachineBusy, match="The benchmark over nodes"):
        bench.bench.start(PLAN)
    task.result(300)
    assert task.failures == [] and len(task.run_ids) == 2
    for id in task.run_ids:
        run = bench.bench.run(id)
        assert run is not None and run.status == "done"
        group = bench.nodes_bench.group(run)
        assert [one.node for one in group] == ["a", "b"]
        assert [one.id for one in bench.nodes_bench.read(group)] == [one.id for one in group]
    assert bench.nodes_bench.running is None and bench.machine.busy_with == ""


@pytest.mark.slow
def test_a_stop_keeps_what_was_measured_and_is_no_failure(bench: Workbench, cluster: ClusterHere) -> None:
    task = started(bench, Plan.from_dict({**PLAN.to_dict(), "rounds": 1000}))
    until(lambda: task.progress.share > 0, "no sample comes", 120)
    task.stop()
    task.result(60)
    (id,) = task.run_ids
    run = bench.bench.run(id)
    assert run is not None and run.status == "stopped" and len(run.samples)
    assert task.failures == [] and [one.id for one in bench.nodes_bench.group(run)] == [id]


@pytest.mark.slow
def test_a_history_that_fails_gets_the_runs_later(
    bench: Workbench, cluster: ClusterHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, fails = Runs.put, True

    def failing(self: Runs, run: RunRecord) -> None:
        if fails:
            raise HistoryError("the disk is full")
        put(self, run)

    monkeypatch.setattr(Runs, "put", failing)
    task = started(bench)
    task.result(300)
    assert "the disk is full" in str(bench.history_error)
    shown = [bench.bench.run(id) for id in task.run_ids]
    assert [one and (one.origin, one.status) for one in shown] == [("node a", "done"), ("node b", "done")]
    assert all(bench.bench.is_only_in_memory(id) for id in task.run_ids)
    fails = False
    until(lambda: not any(map(bench.bench.is_only_in_memory, task.run_ids)), "the runs are not stored later", 60)
    assert all(bench.bench.run(id) for id in task.run_ids)


def test_what_nodes_cannot_measure_is_refused_before_anything_begins(bench: Workbench) -> None:
    with pytest.raises(ConfigError, match="external engines"):
        bench.nodes_bench.start(Plan.from_dict({**PLAN.to_dict(), "axes": {"arm": ["external:x"]}}), "here")
    assert bench.nodes_bench.last is None and bench.machine.busy_with == ""


def test_all_nodes_together_are_refused_in_the_words_of_the_shell(
    bench: Workbench, cluster: ClusterHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[list[str]] = []
    monkeypatch.setattr("engine.bench.planning.together.Cluster", lambda *_given: nullcontext(cluster))
    monkeypatch.setattr(
        bench.bench, "start", lambda _plan, together: begun.append([node.name for node in together.nodes])
    )
    cluster.failures["c"] = "its agent did not start"
    with pytest.raises(ServerFailed, match="node c: its agent did not start") as raised:
        connected("here")
    task = connecting(bench)
    assert task.wait(60) and str(task.error) == str(raised.value)
    assert begun == [] and bench.machine.busy_with == ""
    cluster.failures.clear()
    connecting(bench).result(60)
    assert begun == [["a", "b"]]


def test_a_stop_ends_the_connection_to_the_nodes(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    is_closed = threading.Event()

    def never(_address: str, on_opening: Callable[[Callable[[], None]], object]) -> None:
        on_opening(is_closed.set)
        assert is_closed.wait(60)
        raise PoolClosed("it was closed meanwhile")

    monkeypatch.setattr("engine.bench.planning.together.Cluster", never)
    task = connecting(bench)
    task.stop()
    assert task.wait(60) and task.state == "stopped" and is_closed.is_set()


def test_what_nodes_cannot_measure_together_is_refused_before_they_are_connected(bench: Workbench) -> None:
    with pytest.raises(ConfigError, match="only the number of users"):
        bench.bench.start_together(PLAN, "here")
    assert bench.bench.background.last is None


def test_a_run_of_a_node_is_measured_again_on_that_node(bench: Workbench, cluster: ClusterHere) -> None:
    plan = replace(PLAN, name="Mine on b", axes={"build": ("/nowhere/lib",)})
    cluster.nodes[1].name = "b (id-b)"  # as this connection calls it
    run = make_run(plan=plan.to_dict(), origin="node b")
    bench.nodes_bench.start_again(run, "here", cluster.nodes[1].info())
    task = bench.nodes_bench.last
    assert task is not None
    assert [(one.node.name, one._plan.name) for one in task.result(60)] == [("b (id-b)", "Mine on b (id-b)")]


def test_only_a_node_takes_its_name_from_that_of_its_run() -> None:
    for origin, name in (("node b", "Mine"), ("node c", "Mine on b"), ("measured", "Mine on b")):
        assert plan_of(make_run(plan=replace(PLAN, name="Mine on b").to_dict(), origin=origin)).name == name
    assert plan_of(make_run(plan=replace(PLAN, name="Mine on measured").to_dict())).name == "Mine on measured"


def test_without_a_cluster_there_are_no_nodes(bench: Workbench) -> None:
    assert bench.cluster == ("", [])
