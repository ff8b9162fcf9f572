"""Places of workers on nodes when starts fail: who waits, for how long, who moves where, what is shared."""

import gc
import os
import signal
import threading
import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.cluster import file_sending, model_on_nodes, node_files, node_memory
from engine.cluster import messages as c
from engine.cluster.agent import Agent
from engine.cluster.remote_node import RemoteNode
from engine.cluster.remote_worker import RemoteWorker
from engine.cluster.specs import ClusterSpec
from engine.errors import ConfigError, MemoryRefused, ModelError, PoolClosed, WorkerDied
from engine.pool import attempts, placed
from engine.pool import messages as m
from engine.pool.pool import Pool
from engine.pool.worker_process import WorkerProcess
from engine.tasks import TimeLeft
from engine.units import quantity
from tests.engine.cluster.nodes_here import ClusterHere
from tests.waiting import until

SMALL: dict[str, Any] = {"threads": 1, "parallel": 2, "n_ctx": 256}
PROMPT = "Once upon a time"
CABLE = "its cable was pulled"


def opened(model: Path, workers: dict[str, int], **options: Any) -> Pool:
    return Pool(model, **{"cluster": ClusterSpec(workers=workers), **SMALL, **options})


def places(pool: Pool) -> list[str]:
    return sorted(worker.node for worker in pool.workers())


def named(cluster: ClusterHere, name: str) -> RemoteNode:
    return next(node for node in cluster.nodes if node.name == name)


def worker_of(pool: Pool, name: str) -> WorkerProcess:
    return next(worker for worker in pool._group.alive if worker.node == name)


def kill(pool: Pool, name: str) -> None:
    """Kill the worker of a node, and return once the pool knows it."""
    worker = worker_of(pool, name)
    os.kill(worker.ready.pid, signal.SIGKILL)
    until(lambda: worker not in pool._group.alive)


class Starts:
    """RemoteNode.start_worker with faults. faults: by node, called before a start, and with the started worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.faults: dict[str, Any] = {}
        self.nodes: list[str] = []
        start = RemoteNode.start_worker

        def faulty(node: RemoteNode, program: str, build: str) -> RemoteWorker:
            self.nodes.append(node.name)
            fault = self.faults.get(node.name, lambda _node, _worker: None)
            fault(node, None)
            worker = start(node, program, build)
            fault(node, worker)
            return worker

        monkeypatch.setattr(RemoteNode, "start_worker", faulty)
        monkeypatch.setattr(attempts, "_FIRST_PAUSE_S", 0.05)
        monkeypatch.setattr(attempts, "_LONGEST_PAUSE_S", 0.05)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    return Starts(monkeypatch)


def lost_before(node: RemoteNode, _worker: RemoteWorker | None) -> None:
    node.lose(CABLE)


def lost_while_loading(node: RemoteNode, worker: RemoteWorker | None) -> None:
    if worker is not None:
        node.lose(CABLE)


def refused(node: RemoteNode, _worker: RemoteWorker | None) -> None:
    raise WorkerDied(f"node {node.name}: no space is left on its disk")


@pytest.mark.parametrize("fault", [lost_before, lost_while_loading])
def test_a_node_lost_while_its_worker_starts_ends_the_opening_or_the_adding_and_no_more(
    cluster: ClusterHere, story_model: Path, starts: Starts, monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    monkeypatch.setattr(placed, "NO_NODE_S", 0.1)
    starts.faults["b"] = fault
    with opened(story_model, {"a": 1}) as pool:
        with pytest.raises(ModelError, match="its node b is not there"):
            pool.add_worker("b")
        assert places(pool) == ["a"] and pool.capabilities.num_sequences == 2
        assert pool.submit(PROMPT, max_tokens=4).result(60).text
        cluster.add("b")
        with pytest.raises(ModelError, match="its node b is not there"):
            opened(story_model, {"a": 1, "b": 1})


def test_a_node_lost_while_it_gets_the_model_is_used_when_it_is_back(
    cluster: ClusterHere, story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = file_sending.send_model
    lost: list[str] = []

    def losing(offer: Any, node: RemoteNode, tell: Any) -> str:
        if node.name == "b" and not lost:
            lost.append(node.name)
            node.lose(CABLE)
            cluster.add("b")
        return send(offer, node, tell)

    monkeypatch.setattr(model_on_nodes, "send_model", losing)
    with opened(story_model, {"a": 1, "b": 1}) as pool:
        assert lost and places(pool) == ["a", "b"]


def test_a_pool_without_any_worker_ends_though_a_node_is_there_that_may_not_be_used(
    cluster: ClusterHere, story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placed, "NO_NODE_S", 0.1)
    with opened(story_model, {"a": 1, "b": 1}) as pool:
        pool.pause()
        waiting = pool.submit(PROMPT, max_tokens=4)
        other = named(cluster, "b")
        other.hello = msgspec.structs.replace(other.hello, llama={**other.hello.llama, "commit": "older"})
        os.kill(worker_of(pool, "b").ready.pid, signal.SIGKILL)
        named(cluster, "a").lose(CABLE)
        with pytest.raises(PoolClosed, match="no node of the cluster"):
            waiting.result(60)


def test_a_worker_does_not_move_to_a_node_that_was_to_have_none(
    cluster: ClusterHere, story_model: Path, monkeypatch: pytest.MonkeyPatch, starts: Starts
) -> None:
    monkeypatch.setattr(placed, "NO_NODE_S", 0.1)
    with opened(story_model, {"a": 1}) as pool:
        named(cluster, "a").lose(CABLE)
        until(lambda: pool.ending, "the pool waits for ever")
        assert starts.nodes == ["a"]


def test_a_replacement_that_fails_is_tried_again_while_others_run(
    cluster: ClusterHere, story_model: Path, monkeypatch: pytest.MonkeyPatch, starts: Starts
) -> None:
    monkeypatch.setattr(placed, "NO_NODE_S", 0.1)
    with opened(story_model, {"a": 1, "b": 1}) as pool:
        starts.faults["b"] = refused
        kill(pool, "b")
        until(lambda: starts.nodes.count("b") == 4, "it is not tried again")
        assert pool.submit(PROMPT, max_tokens=4).result(60).text
        del starts.faults["b"]
        until(lambda: places(pool) == ["a", "b"], "it is given up")


def test_a_replacement_that_fails_on_its_node_goes_to_another_with_room_and_memory(
    cluster: ClusterHere, story_model: Path, monkeypatch: pytest.MonkeyPatch, starts: Starts
) -> None:
    full = {"c"}
    check = node_memory.check_fits_on

    def checked(node: str, *arguments: Any) -> object:
        if node in full:
            raise MemoryRefused(f"Node {node}: needs more memory")
        return check(node, *arguments)

    with Pool(story_model, cluster="here", instances=2, **SMALL) as pool:
        cluster.add("c")
        monkeypatch.setattr(placed, "check_fits_on", checked)
        starts.faults["b"] = refused
        kill(pool, "b")
        until(lambda: starts.nodes.count("b") == 3, "it is not tried again")
        assert "c" not in starts.nodes
        full.clear()
        until(lambda: places(pool) == ["a", "c"], "it does not move")


def test_a_slow_node_does_not_stop_replacements_on_others(
    cluster: ClusterHere, story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, comes = threading.Event(), threading.Event()
    send = file_sending.send_model

    def slow(offer: Any, node: RemoteNode, tell: Any) -> str:
        if node.name == "b":
            comes.set()
            assert goes_on.wait(60)
        return send(offer, node, tell)

    with opened(story_model, {"a": 1, "b": 1}) as pool:
        assert pool._nodes is not None
        pool._nodes._model._paths.clear()
        monkeypatch.setattr(model_on_nodes, "send_model", slow)
        kill(pool, "b")
        assert comes.wait(60)
        kill(pool, "a")
        until(lambda: places(pool) == ["a"], "it waits for the other node")
        goes_on.set()
        until(lambda: places(pool) == ["a", "b"])


def test_a_pool_that_nothing_refers_to_is_collected_while_a_worker_waits_for_its_node(
    cluster: ClusterHere, story_model: Path
) -> None:
    seen = _left_alone(cluster, story_model)
    until(lambda: gc.collect() >= 0 and seen() is None, "the thread that waits keeps it")
    until(lambda: cluster.is_closed, "its workers stay")


def _left_alone(cluster: ClusterHere, model: Path) -> "weakref.ref[Pool]":
    """Open a pool, lose the node of one of its workers, and leave the pool."""
    pool = opened(model, {"a": 1, "b": 1})
    named(cluster, "b").lose(CABLE)
    until(lambda: places(pool) == ["a"])
    return weakref.ref(pool)


def test_an_added_worker_shares_the_cores_of_its_node(cluster: ClusterHere, story_model: Path) -> None:
    named(cluster, "b").cores = 4
    with opened(story_model, {"b": 1}, threads=None) as pool:
        assert worker_of(pool, "b").load.threads == 4
        pool.add_worker("b")
        assert sorted(worker.load.threads for worker in pool._group.alive) == [2, 4]


def test_what_is_done_before_a_model_runs_is_described_in_words(
    cluster: ClusterHere, story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_files._Arriving, "_is_at_front_path", lambda _self, _task: False)
    steps: list[str] = []
    shares: list[float] = []
    with opened(story_model, {"a": 1, "b": 1}, on_step=steps.append, on_progress=shares.append) as pool:
        job = pool.submit(PROMPT, max_tokens=4)
        assert job.result(60).text and job.node in ("a", "b")
    assert (steps[0], steps[-1]) == ("connecting to the cluster", "loading the model")
    size = quantity(story_model.stat().st_size, "B")
    assert any(f"{story_model.name} to node " in step and f" of {size}" in step for step in steps)
    assert shares == sorted(shares) and 0.5 in shares and shares[-1] == 1


def test_the_time_left_is_that_of_all_nodes() -> None:
    pace = TimeLeft()
    progress = model_on_nodes._progress({"a": 0.25, "b": 0.75}, {"a": "a gets it", "b": "b gets it"}, pace, 10.0)
    assert progress == (0.5, "a gets it · 10 s left")
    assert model_on_nodes._progress({"a": 0.0}, {"a": "a reads it"}, TimeLeft(), 1.0) == (0.0, "a reads it")
    assert model_on_nodes._progress({"a": 1.0}, {"a": ""}, pace, 20.0) == (1.0, "")


def test_pinning_is_refused_on_nodes(cluster: ClusterHere, story_model: Path) -> None:
    with pytest.raises(ConfigError, match="pin: "):
        opened(story_model, {"a": 1}, pin=True)


def test_a_worker_added_to_held_ones_is_held(cluster: ClusterHere, story_model: Path) -> None:
    with opened(story_model, {"a": 1}) as pool:
        with pool.held():
            pool.add_worker("b")
            jobs = [pool.submit(f"{number}: {PROMPT}", max_tokens=8) for number in range(4)]
            added = worker_of(pool, "b")
            assert added.jobs
            for _ in range(20):  # between two of its steps a worker that is not held would answer
                assert added.call(m.Measure).result(60).figures["num_tokens"] == 0
        assert [job.result(60).finish_reason for job in jobs] == ["length"] * 4


def test_calls_go_to_workers_that_stay_and_are_repeated_where_one_leaves(
    cluster: ClusterHere, story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(story_model, {"a": 1, "b": 1}) as pool:
        leaving = worker_of(pool, "a")
        call, called = WorkerProcess.call, list[str]()

        def removed(worker: WorkerProcess, make: Any) -> Any:
            called.append(worker.node)
            if worker is leaving:
                pool.remove_worker("a")
                until(lambda: leaving not in pool._group.alive)
            return call(worker, make)

        monkeypatch.setattr(WorkerProcess, "call", removed)
        assert pool.tokenize(PROMPT)
        assert called == ["a", "b"]
        assert pool.measure(60) and called[2:] == ["b"]


def test_an_agent_reports_what_a_worker_did_at_last_before_its_end(
    cluster: ClusterHere, story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    send = Agent._send

    def recorded(agent: Agent, message: Any) -> None:
        if isinstance(message, c.Report):  # those of workers that the agent has found ended
            sent.extend(beat.worker for beat in message.beats if beat.worker not in agent._workers)
        elif isinstance(message, c.Ended):
            sent.append(message)
        send(agent, message)

    monkeypatch.setattr(Agent, "_send", recorded)
    with opened(story_model, {"a": 1, "b": 1}) as pool:
        kill(pool, "b")
        until(lambda: any(isinstance(one, c.Ended) for one in sent))
        last, ended = sent[:2]
        assert last == ended.worker
