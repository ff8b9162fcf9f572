"""The Benchmark page beside a cluster: all nodes together, and runs of nodes that are measured again."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from engine.bench.planning.plan import Plan
from engine.errors import ServerFailed
from engine.protocol import NodeInfo
from engine.runs import RunRecord
from engine.tasks import TaskRunner
from engine.workbench import Workbench
from pages.parts.plain import plain
from tests.pages.app import open_page, press
from tests.pages.bench_harness import ScriptedManager, make_run
from tests.scripted_task import ScriptedTask

ADDRESS = "10.0.0.1:6379"


@pytest.fixture
def again(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """What was asked of the benchmarks over nodes, which have one run each: id of the node, and address."""
    asked: list[tuple[str, str]] = []
    nodes: Any = TaskRunner[Any]()
    nodes.group = lambda _run: []
    nodes.start_again = lambda _run, address, node: asked.append((node.id, address))
    monkeypatch.setattr(bench, "nodes_bench", nodes)
    yield asked


def connect(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Have a cluster with nodes of these names connected, none without any."""
    nodes = [
        NodeInfo(name, "10.0.0.1", 2, 8 << 30, 4 << 30, "a processor", {}, 0, "", id=f"id {name}", given_name=name)
        for name in names
    ]
    monkeypatch.setattr(Workbench, "cluster", property(lambda _self: (ADDRESS if nodes else "", nodes)))


def opened(manager: ScriptedManager, run: RunRecord) -> AppTest:
    manager.runs[run.id] = run
    return open_page("benchmark.py", "Benchmark", run=run.id)


def test_why_nodes_cannot_be_measured_together_is_said_on_the_page(
    manager: ScriptedManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, "ash", "oak")
    at = press(open_page("benchmark.py", "Benchmark", question="users"), "plan_run_together")
    ((name, plan, address),) = manager.calls
    assert (name, plan.question, address) == ("start_together", "users", ADDRESS)
    task = manager.background.last
    assert isinstance(task, ScriptedTask)
    assert at.button(key="plan_run_together").disabled and at.button(key="bench_background_stop")
    task.fail(ServerFailed("1 node of the cluster cannot be used: node elm: its agent did not start"))
    at.run()
    assert plain("node elm: its agent did not start") in at.main.error[0].value
    assert not at.button(key="plan_run_together").disabled
    assert not open_page("benchmark.py", "Benchmark", question="python").main.error


@pytest.mark.parametrize("nodes", [(), ("oak",)], ids=["no cluster", "one without the node"])
def test_a_run_of_a_node_that_is_away_is_measured_here_and_says_so(
    manager: ScriptedManager,
    plan: Plan,
    again: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    nodes: tuple[str, ...],
) -> None:
    connect(monkeypatch, *nodes)
    at = opened(manager, make_run(replace(plan, rounds=1), origin="node ash"))
    help_text = at.button(key="run_again").proto.help
    assert help_text.startswith("Measures on this machine")
    assert plain("has no node ash now" if nodes else "on the node ash again") in help_text
    press(at, "run_again")
    assert [called[0] for called in manager.calls] == ["start"] and again == []


def test_a_run_of_a_node_is_measured_again_there(
    manager: ScriptedManager, plan: Plan, again: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, "ash", "oak")
    at = opened(manager, make_run(replace(plan, rounds=1), origin="node ash"))
    assert "on node ash again" in at.button(key="run_again").proto.help
    press(at, "run_again")
    assert again == [("id ash", ADDRESS)] and manager.calls == []


def test_a_run_of_a_name_that_several_nodes_have_is_measured_here_and_says_why(
    manager: ScriptedManager, plan: Plan, again: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, "ash", "ash")
    at = opened(manager, make_run(replace(plan, rounds=1), origin="node ash"))
    help_text = at.button(key="run_again").proto.help
    assert (
        help_text.startswith("Measures on this machine") and "which of them measured this run is not known" in help_text
    )
    press(at, "run_again")
    assert [called[0] for called in manager.calls] == ["start"] and again == []


def test_a_run_of_all_nodes_is_measured_again_by_them(
    manager: ScriptedManager, plan: Plan, again: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, "ash", "oak")
    run = make_run(replace(plan, rounds=1), origin="cluster of 2 nodes")
    at = press(opened(manager, run), "run_again")
    assert manager.calls == [("start_together", Plan.from_dict(run.plan), ADDRESS)] and again == []
    assert at.button(key="bench_background_stop")


def test_a_run_of_this_machine_needs_no_words(
    manager: ScriptedManager, plan: Plan, again: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, "ash")
    at = opened(manager, make_run(replace(plan, rounds=1)))
    assert not at.button(key="run_again").proto.help
    press(at, "run_again")
    assert [called[0] for called in manager.calls] == ["start"] and again == []
