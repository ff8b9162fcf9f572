"""The Benchmark page while one is measured, and the tray that all pages have."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from engine.bench.planning.plan import Plan
from engine.errors import HistoryError
from engine.ids import new_id
from engine.over_nodes.group import Member
from engine.runs import RunRecord
from engine.tasks import TaskRunner
from engine.workbench import Workbench
from engine.workbench.nodes_bench_manager import MOST_TOGETHER
from pages.parts.plain import plain
from tests.pages.app import address, frame, open_page, press, primary, said
from tests.pages.bench_harness import ScriptedManager, make_run
from tests.scripted_task import WITHIN_S, ScriptedTask
from tests.waiting import until


def page(**query: str) -> AppTest:
    return open_page("benchmark.py", "Benchmark", **query)


def test_a_running_benchmark_is_watched_and_stopped(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(replace(plan, rounds=2))
    manager.begin(run, plan, done=14, total=36, left_s=372)
    at = page()
    assert address(at) == {"run": run.id}
    texts = said(at)
    assert "other programs 0.3 cores" in texts and ":material/check_circle: taken by the host 0 %" in texts
    assert plain(f"{run.cells[1].label} · measuring") in texts
    assert [one.proto.component_name for one in at.main.get("bidi_component")] == ["logitbench_live_chart"]
    press(at, "watch_stop")
    assert manager.calls == [("stop",)]
    assert primary(at) == ["Continue"]
    press(at, "run_resume")
    assert manager.calls[-1] == ("resume", run.id)


def test_what_is_not_kept_is_said_while_it_runs_and_afterwards(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(replace(plan, rounds=2))
    manager.begin(run, plan)
    assert not page().error
    assert manager._running is not None
    manager._running.failure = HistoryError("the disk is full")
    (error,) = page().error
    assert "The disk is full" in error.value and "stay in memory" in error.value
    manager.end()
    assert not page(run=run.id).error
    manager.unkept.add(run.id)
    (error,) = page(run=run.id).error
    assert "it is lost if the workbench closes" in error.value


def test_the_tray_is_on_every_page(manager: ScriptedManager, plan: Plan) -> None:
    manager.begin(make_run(replace(plan, rounds=2)), plan, done=14, total=36, left_s=372)
    at = frame().run()
    assert [title.value for title in at.title] == ["Prompt lab"]
    assert "6 min left" in [caption.value for caption in at.sidebar.caption]
    press(at, "tray_stop_Benchmark")
    assert manager.task is not None and manager.task.is_stopped
    until(lambda: manager.running is None)
    assert "6 min left" not in [caption.value for caption in at.run().sidebar.caption]


def test_one_benchmark_at_a_time(manager: ScriptedManager, plan: Plan) -> None:
    manager.begin(make_run(replace(plan, rounds=2)), plan)
    at = page(question="users")
    assert at.button(key="plan_run").disabled
    assert "Another benchmark is running" in said(at)


def test_a_run_of_a_node_that_is_measured_is_watched_and_stopped(
    bench: Workbench, manager: ScriptedManager, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = make_run(replace(plan, rounds=1), status="running", origin="node ash")
    older = make_run(replace(plan, rounds=1))
    manager.runs = {older.id: older, half.id: half}
    task: Any = ScriptedTask("The benchmark over nodes", 0.5, "ash: measuring", 75.0)
    task.plan, task.address, task.benches, task.run_ids, task.failures = plan, "10.0.0.1:6379", [], [half.id], []
    begun: Any = TaskRunner[Any]()
    begun.group = lambda _run: []
    begun.start(task)
    monkeypatch.setattr(bench, "nodes_bench", begun)
    at = page()
    assert address(at) == {"run": half.id}
    assert plain("10.0.0.1:6379") in said(at) and primary(at) == ["Stop"]
    press(at, "nodes_stop")
    assert task.wait(WITHIN_S) and task.is_stopped


def test_of_many_nodes_the_first_are_shown_and_their_runs_read_once(
    bench: Workbench, manager: ScriptedManager, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(replace(plan, rounds=1), origin="node n00")
    manager.runs = {run.id: run}
    ids = [run.id, *(new_id() for _ in range(MOST_TOGETHER))]
    group = [Member(id, f"n{number:02}", "a machine", "", "done", 6, 0) for number, id in enumerate(ids)]
    asked: list[int] = []

    def read(shown: Sequence[Member]) -> list[RunRecord]:
        asked.append(len(shown))
        return [replace(run, id=one.id, origin=f"node {one.node}") for one in shown]

    nodes: Any = TaskRunner[Any]()
    nodes.group, nodes.read = lambda _run: group, read
    monkeypatch.setattr(bench, "nodes_bench", nodes)
    at = page(run=run.id)
    assert f"The first {MOST_TOGETHER} of {MOST_TOGETHER + 1} nodes" in said(at)
    at.run()
    assert asked == [MOST_TOGETHER]
