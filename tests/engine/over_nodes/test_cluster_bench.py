"""A plan measured on each node, with agents in this process: its runs, their group, failures and stops."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine import __main__ as shell
from engine.bench.analysis.entries import marks_of
from engine.bench.analysis.entries import offer as offered
from engine.bench.planning.plan import Plan
from engine.cluster import node_files
from engine.errors import ConfigError, EngineError, HistoryError, WorkerDied
from engine.history import History, run_bytes, run_from_bytes
from engine.history.filters import Filter
from engine.machine.cores import allowed_cores
from engine.machine.fingerprint import fingerprint_hash
from engine.over_nodes import cluster_bench, node_bench
from engine.over_nodes import messages as m
from engine.over_nodes.cluster_bench import ClusterBench, name_on
from engine.over_nodes.node_bench import NodeBench
from engine.over_nodes.node_of_run import node_of
from engine.runs import RunRecord
from engine.settings import Settings
from engine.workbench.nodes_bench_manager import plan_of
from tests.engine.cluster.nodes_here import ClusterHere, cluster_here
from tests.engine.history.run_maker import make_run
from tests.processes import children_with
from tests.waiting import until

WORKLOAD = {"num_prompt": 8, "num_generated": 4}
WORDS = ("--layout", "1x1", "--num-prompt", "8", "--num-generated", "4", "--rounds", "1", "--cluster", "here")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ClusterHere]:
    """Two nodes, a and b, of one core each."""
    with cluster_here(tmp_path, "a", "b") as one:
        monkeypatch.setattr(ClusterHere, "__enter__", lambda self: self, raising=False)
        monkeypatch.setattr(ClusterHere, "__exit__", lambda self, *_error: self.close(), raising=False)
        monkeypatch.setattr(cluster_bench, "Cluster", lambda _address, _on_opening: one)
        yield one


def planned(model: Path, **options: Any) -> Plan:
    return Plan(**{"model": str(model), "axes": {"layout": ("1x1",)}, "workload": WORKLOAD, "rounds": 1, **options})


def programs() -> list[psutil.Process]:
    return children_with(node_bench.PROGRAM)


@pytest.mark.slow
def test_a_plan_gives_a_run_of_each_node_in_one_group_of_the_history(
    cluster: ClusterHere, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.main(["bench", *WORDS, "--name", "both", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [run["status"] for run in printed] == ["done", "done"]
    with History.open(Settings.from_environment().history) as history:
        (tag,) = history.marks.tags()
        found = history.find.runs(Filter(tags=(tag,)))
        assert {row["id"] for row in found.rows} == {run["id"] for run in printed}
        runs = [history.runs.run(run["id"]) for run in printed]
    assert [(run.name, run.origin) for run in runs if run] == [("both on a", "node a"), ("both on b", "node b")]
    for name, run in zip("ab", runs, strict=True):
        assert run is not None and str(run.machine["name"]).startswith(f"{name}: ")
        assert run.machine["allowed_cores"] == allowed_cores()[:1]
        assert run.samples["tokens_per_s"].size and (run.samples["tokens_per_s"] > 0).all()
        assert not run.cells[0].reason
    assert shell.main(["bench", "resume", printed[0]["id"]]) == 2
    assert "not measured by this machine (node a)" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "question"),
    [
        (("tune", "--budget", "3", "--layout", "1x1", "--parallel", "1,2"), "settings"),
        (("reconcile", "--engine", "loop,pool", "--num-prompt", "8", "--num-generated", "4"), "python"),
    ],
)
def test_each_node_searches_its_own_settings_and_its_own_time_per_token(
    cluster: ClusterHere, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], question: str
) -> None:
    assert shell.main([*words, "--rounds", "1", "--cluster", "here", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    with History.open(Settings.from_environment().history) as history:
        runs = [history.runs.run(run["id"]) for run in printed]
    assert [(run.question, run.origin, run.status) for run in runs if run] == [
        (question, "node a", "done"),
        (question, "node b", "done"),
    ]
    assert all(run is not None and run.outcome["sentence"] and len(run.samples) for run in runs)


@pytest.mark.slow
def test_a_node_that_lacks_the_model_measures_the_one_that_is_sent(
    cluster: ClusterHere, story_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(node_files._Arriving, "_is_at_front_path", lambda _self, _task: False)
    cluster.nodes[1].lose("not needed")
    (bench,) = measured(planned(story_model))
    assert [path.name for path in (tmp_path / "a" / "cluster").rglob("*.gguf")] == [story_model.name]
    assert bench.error is None and bench.record is not None
    assert bench.record.plan["model"] == bench.record.cells[0].settings["model"] == str(story_model)


@pytest.mark.slow
def test_a_program_that_ends_is_reported_and_the_other_node_measures(cluster: ClusterHere, story_model: Path) -> None:
    kept: dict[str, RunRecord] = {}
    task = started(planned(story_model), kept)
    until(lambda: len(kept) == 1, "no run has begun")
    (program,) = programs()
    program.kill()
    failed, whole = task.result(300)
    assert isinstance(failed.error, WorkerDied) and "on node a" in str(failed.error)
    assert failed.record is not None and failed.record.status == "interrupted"
    assert whole.error is None and whole.record is not None and whole.record.status == "done"
    assert sorted(run.status for run in kept.values()) == ["done", "interrupted"]


@pytest.mark.slow
def test_a_node_that_is_lost_is_reported_and_leaves_nothing(cluster: ClusterHere, story_model: Path) -> None:
    kept: dict[str, RunRecord] = {}
    task = started(planned(story_model), kept)
    until(lambda: len(kept) == 1, "no run has begun")
    cluster.nodes[0].lose("its plug was pulled")
    failed, whole = task.result(300)
    assert "lost with its node a: its plug was pulled" in str(failed.error)
    assert whole.error is None
    until(lambda: not programs(), "a program outlived its node's loss")


@pytest.mark.slow
def test_a_stop_keeps_what_was_measured(cluster: ClusterHere, story_model: Path) -> None:
    kept: dict[str, RunRecord] = {}
    task = started(planned(story_model, rounds=1000), kept)
    until(lambda: task.progress.share > 0, "no sample comes", 120)
    task.stop()
    first, second = task.result(60)
    assert first.error is None
    assert first.record is not None and first.record.status == "stopped" and len(first.record.samples)
    assert second.record is None and "stopped before it had begun" in str(second.error)
    until(lambda: not programs(), "a program outlived the stop")


def test_what_no_node_can_run_is_said_of_each(cluster: ClusterHere, story_model: Path) -> None:
    benches = measured(planned(story_model, axes={"build": ("/nowhere/lib",)}))
    assert [type(bench.error) for bench in benches] == [ConfigError, ConfigError]
    assert [f"node {name}" in str(bench.error) for name, bench in zip("ab", benches, strict=True)] == [True, True]


def test_of_the_nodes_only_those_that_are_asked_for_measure(cluster: ClusterHere, story_model: Path) -> None:
    cluster.failures.update({"id-c": "its agent did not start", "id-d": "its agent did not start"})
    only = {f"id-{name}": f"{name} (id)" for name in "bce"}
    task = started(planned(story_model, axes={"build": ("/nowhere/lib",)}), {}, only)
    assert [bench.node.name for bench in task.result(300)] == ["b"]
    assert task.unusable == {"c (id)": "its agent did not start", "e (id)": "the cluster has no such node now"}


def test_nothing_is_said_of_the_history_where_no_node_began(
    cluster: ClusterHere, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.main(["bench", *WORDS, "--build", "/nowhere/lib"]) != 0
    errors = capsys.readouterr().err
    assert "2 nodes failed" in errors and "history" not in errors
    with History.open(Settings.from_environment().history) as history:
        assert history.marks.tags() == []


def test_a_run_that_a_node_makes_up_is_refused(cluster: ClusterHere, story_model: Path) -> None:
    bench = NodeBench(cluster.nodes[0], planned(story_model), {}, lambda _run: None)
    with pytest.raises(HistoryError, match="node a"):
        bench._own(b"PK no run")
    with pytest.raises(EngineError, match="node a: made up"):
        bench._take_end(m.Measured(b"", "bounded", "made up"))


def test_a_node_cannot_replace_a_run_of_the_history(cluster: ClusterHere, story_model: Path) -> None:
    bench, sent = NodeBench(cluster.nodes[0], planned(story_model, name="own"), {}, lambda _run: None), make_run()
    for years in (-10, 10):  # the node's clock is wrong
        then = sent.created_at.replace(year=sent.created_at.year + years)
        own = bench._own(run_bytes(replace(sent, created_at=then)))
        assert own.id != sent.id and (own.name, own.origin) == ("own", "node a")
        assert own.created_at == bench._began


def test_a_run_keeps_what_tells_its_node_from_others_whatever_its_name_is(
    cluster: ClusterHere, story_model: Path
) -> None:
    node = cluster.nodes[0]
    sent = make_run(machine={"cpu": "a processor", "node": {"name": "another", "id": "1", "address": "203.0.113.9"}})
    runs = []
    for node.name in ("a", "a (id-a)"):
        plan = planned(story_model, name=name_on(node.name, "Mine"))
        runs.append(NodeBench(node, plan, {}, lambda _run: None)._own(run_bytes(sent)))
    assert [run.machine["node"] for run in runs] == [{"name": "a", "id": "id-a", "address": "127.0.0.1"}] * 2
    assert [(run.name, run.origin, plan_of(run).name) for run in runs] == [
        ("Mine on a", "node a", "Mine"),
        ("Mine on a (id-a)", "node a (id-a)", "Mine"),
    ]


@pytest.mark.parametrize("address", ["127.0.0.1", "203.0.113.9"])
def test_a_machine_is_the_same_whatever_connections_call_its_node(
    cluster: ClusterHere, story_model: Path, address: str
) -> None:
    node, sent = cluster.nodes[0], make_run(machine={"cpu": "a processor", "allowed_cores": [0]})

    def run() -> RunRecord:
        return NodeBench(node, planned(story_model), {}, lambda _run: None)._own(run_bytes(sent))

    runs = []
    node.address = address
    for node.name, node.given_name, node.id in (("a", "a", "0" * 8), ("a (111111)", "a", "1" * 8), ("b", "b", "2" * 8)):
        runs.append(run())
    assert len({one.machine["hash"] for one in runs}) == 1
    assert [one.machine["name"] for one in runs] == ["a: a processor", "a (111111): a processor", "b: a processor"]
    node.address = "203.0.113.10"  # another machine, of the same kind and the same name
    assert run().machine["hash"] != runs[0].machine["hash"]


def test_a_run_of_an_earlier_version_is_read_and_compared(cluster: ClusterHere, story_model: Path) -> None:
    node, facts = cluster.nodes[0], {"cpu": "a processor", "threads": 2}
    node.address = "203.0.113.9"
    now = NodeBench(node, planned(story_model), {}, lambda _run: None)._own(run_bytes(make_run(machine=facts)))
    named = {**facts, "name": "a: a processor"}
    older = make_run(origin="node a", machine={**named, "hash": fingerprint_hash(named)})
    assert node_of(older, [node.info()]).node == node.info()
    assert run_from_bytes(run_bytes(older), "the run").machine == older.machine
    first, second = (next(iter(offered([run]).entries.values())) for run in (older, now))
    assert marks_of(second, first) == ()


def test_names_that_are_too_long_for_a_plan_are_shortened(story_model: Path) -> None:
    for node, group in (("n" * 5000, "group"), ("n" * 5000, "g" * 1000), ("b", "g" * 1000)):
        plan = planned(story_model, name=name_on(node, group))
        run = make_run(plan=plan.to_dict(), origin=f"node {node[:100]}")
        assert group.startswith(plan_of(run).name) and plan.name.endswith(f" on {node[:100]}")


@pytest.mark.parametrize("address, is_same", [("127.0.0.1", True), ("203.0.113.9", False)])
def test_a_node_of_this_machine_has_its_fingerprint(
    cluster: ClusterHere, story_model: Path, address: str, is_same: bool
) -> None:
    node, facts = cluster.nodes[0], {"cpu": "a processor", "allowed_cores": [0]}
    node.address = address
    sent = make_run(machine={**facts, "hash": fingerprint_hash(facts)})
    own = NodeBench(node, planned(story_model), {}, lambda _run: None)._own(run_bytes(sent))
    assert (own.machine["hash"] == sent.machine["hash"]) == is_same


@pytest.mark.parametrize(
    "more", [("--dry-run",), ("--out", "x.zip"), ("--send-to-others",), ("--engine", "external:x"), ("--together",)]
)
def test_what_a_cluster_cannot_do_is_said(capsys: pytest.CaptureFixture[str], more: tuple[str, ...]) -> None:
    assert shell.main(["bench", *WORDS, *more]) == 2
    errors = capsys.readouterr().err
    assert any(word.removeprefix("--") in errors for word in more)


def started(plan: Plan, kept: dict[str, RunRecord], only: dict[str, str] | None = None) -> ClusterBench:
    def keep(run: RunRecord) -> None:
        kept[run.id] = run

    task = ClusterBench(plan, "here", "group", keep, only=only)
    task.start()
    return task


def measured(plan: Plan) -> list[NodeBench]:
    return started(plan, {}).result(300)
