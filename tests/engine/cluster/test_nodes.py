"""Pools whose workers run on nodes, with agents in this process: places, losses, and what a node must have."""

import os
import signal
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from engine.cluster import messages as c
from engine.cluster import node_files, remote_node
from engine.cluster.remote_node import RemoteNode
from engine.cluster.specs import ClusterSpec, given_cluster, spread
from engine.commands.keeping import keep
from engine.errors import ConfigError, MemoryRefused, PoolClosed, ServerFailed, WorkerDied
from engine.history import History
from engine.machine.fingerprint import SOURCES
from engine.pool import placed
from engine.pool.pool import Pool
from engine.protocol import mixture_of
from engine.settings import Settings
from engine.specs import Sampling
from tests.conftest import ENDLESS
from tests.engine.cluster.nodes_here import ClusterHere, cluster_here, death_of
from tests.waiting import until

SMALL: dict[str, Any] = {"threads": 1, "parallel": 2, "n_ctx": 256}
PROMPT = "Once upon a time"


def opened(model: Path, **options: Any) -> Pool:
    return Pool(model, **{"cluster": "here", "instances": 2, **SMALL, **options})


def places(pool: Pool) -> list[str]:
    return sorted(worker.node for worker in pool.workers())


def test_workers_are_spread_by_cores() -> None:
    assert spread(4, [1, 1]) == [2, 2]
    assert spread(3, [2, 1]) == [2, 1]
    assert spread(6, [4, 2]) == [4, 2]
    assert spread(1, [8, 16]) == [0, 1]


@pytest.mark.parametrize(
    "values",
    [{"address": 3}, {"workers": {"a": -1}}, {"workers": {"a": 0}}, {"workers": ["a"]}, {"mixed": 2}, {"adress": "x"}],
    ids=str,
)
def test_parameters_of_a_cluster_are_checked(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ClusterSpec(**values)


def test_a_cluster_is_an_address_or_a_spec() -> None:
    spec = ClusterSpec(address="10.0.0.1:6379", workers={"a": 2})
    assert given_cluster(spec) is spec and ClusterSpec.from_dict(spec.to_dict()) == spec
    assert given_cluster("auto") == ClusterSpec()
    with pytest.raises(ConfigError, match="auto, or a ClusterSpec"):
        given_cluster(7)


def test_nodes_give_the_tokens_and_figures_of_this_machine(cluster: ClusterHere, story_model: Path) -> None:
    sampling = Sampling(seed=3)
    with Pool(story_model, **SMALL) as local:
        expected = local.submit(PROMPT, sampling, max_tokens=24, top_k=5, prompt_logprobs=True).result(60)
    with opened(story_model) as pool:
        assert places(pool) == ["a", "b"]
        jobs = [pool.submit(PROMPT, sampling, max_tokens=24, top_k=5, prompt_logprobs=True) for _ in range(4)]
        for job in jobs:
            got = job.result(60)
            assert got.text == expected.text
            for column, tolerance in (("id", 0), ("rank", 0), ("logprob", 1e-3)):
                np.testing.assert_allclose(got.steps.records[column], expected.steps.records[column], atol=tolerance)


def test_nodes_are_listed_with_what_runs_on_them(cluster: ClusterHere, story_model: Path) -> None:
    with opened(story_model, cluster=ClusterSpec(workers={"a": 0, "b": 2}), instances=1) as pool:
        assert pool.spec.instances == 2 and pool.capabilities.num_sequences == 4
        first, second = pool.nodes()
        assert (first.name, first.num_workers, second.name, second.num_workers) == ("a", 0, "b", 2)
        assert second.cores == 1 and second.memory_bytes >= second.free_bytes > 0
        assert second.llama["commit"] and second.cpu and not second.reason


def test_workers_are_added_and_removed_while_others_run(cluster: ClusterHere, story_model: Path) -> None:
    with opened(story_model, cluster=ClusterSpec(workers={"a": 1})) as pool:
        assert places(pool) == ["a"]
        running = pool.submit(PROMPT, max_tokens=200)
        pool.add_worker("b")
        assert places(pool) == ["a", "b"] and pool.capabilities.num_sequences == 4
        with pytest.raises(ConfigError, match="is not one that can be used"):
            pool.add_worker("c")
        pool.remove_worker("a")
        assert len(running.result(60).steps) > 0
        until(lambda: places(pool) == ["b"], "the worker that was removed stays")
        assert pool.submit(PROMPT, max_tokens=4).result(60).text
        with pytest.raises(ConfigError, match="last worker"):
            pool.remove_worker("b")
        with pytest.raises(ConfigError, match="has no worker"):
            pool.remove_worker("a")


def test_a_pool_on_this_machine_has_no_nodes(pool: Pool) -> None:
    assert pool.nodes() == []
    for change in (pool.add_worker, pool.remove_worker):
        with pytest.raises(ConfigError, match="one machine"):
            change("a")


def test_jobs_of_a_lost_node_go_on_elsewhere_or_end_with_its_name(cluster: ClusterHere, story_model: Path) -> None:
    with opened(story_model, n_ctx=512) as pool:
        with pool.held():  # of those that run, none has a token yet
            jobs = [pool.submit(f"{number}: {PROMPT}", max_tokens=8) for number in range(8)]
            named(cluster, "b").lose("its cable was pulled")
            until(lambda: places(pool) == ["a"], "the worker of the lost node stays")
        assert [job.result(60).finish_reason for job in jobs] == ["length"] * 8
        cluster.add("b")
        until(lambda: places(pool) == ["a", "b"], "the node that came back is not used")
        long = [pool.submit(f"{number}: {PROMPT}", ENDLESS, max_tokens=480) for number in range(4)]
        until(lambda: all(len(job.steps) for job in long), "no tokens come")
        named(cluster, "b").lose("its cable was pulled")
        failures = [failure for job in long if (failure := death_of(job)) is not None]
        assert len(failures) == 2
        assert all("node b: its cable was pulled" in str(failure) for failure in failures)


def test_a_pool_without_any_node_ends(cluster: ClusterHere, story_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed, "NO_NODE_S", 0.1)
    with opened(story_model) as pool:
        pool.pause()
        waiting = pool.submit(PROMPT, max_tokens=4)
        for node in list(cluster.nodes):
            node.lose("its switch is off")
        with pytest.raises(PoolClosed, match="no node of the cluster"):
            waiting.result(60)


def test_a_worker_that_dies_is_replaced_on_its_node(cluster: ClusterHere, story_model: Path) -> None:
    with opened(story_model) as pool:
        worker = next(worker for worker in pool.workers() if worker.node == "a")
        os.kill(worker.pid, signal.SIGKILL)
        until(lambda: places(pool) == ["a", "b"] and worker.pid not in pids(pool), "it is not replaced")
        assert pool.submit(PROMPT, max_tokens=4).result(60).text


def test_a_suspended_worker_is_killed_and_replaced(cluster: ClusterHere, story_model: Path) -> None:
    with opened(story_model) as pool:
        worker = pool.workers()[0]
        psutil.Process(worker.pid).suspend()
        until(lambda: places(pool) == ["a", "b"] and worker.pid not in pids(pool), "it is not replaced")


def test_silence_is_waited_for_until_the_node_counts_as_lost(cluster: ClusterHere) -> None:
    node = named(cluster, "a")
    node.tick(c.LOST_S - 10)
    assert not node.is_lost
    until(lambda: node.silent_s == 0.0, "the agent is not heard")
    node.tick(c.LOST_S + 1)
    assert node.is_lost and node.loss == "it was silent for 30 s"
    with pytest.raises(WorkerDied, match="node a: it was silent"):
        node.ask("about_llama")


def test_a_node_that_stalls_holds_its_jobs_and_no_watchdog_kills_its_worker(
    cluster: ClusterHere, story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(story_model) as pool:
        worker = next(one for one in pool._group.alive if one.node == "a")
        monkeypatch.setattr(RemoteNode, "_handle", lambda _self, _message: None)  # reports are not heard
        until(lambda: worker._life.heartbeat() is None, "it still counts as fresh")  # type: ignore[attr-defined]
        silent_s = worker.watch.silent_s
        assert worker.watch.look(100.0) == "" and worker.watch.silent_s == silent_s


def test_a_node_without_the_model_gets_it(
    cluster: ClusterHere, story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_files._Arriving, "_is_at_front_path", lambda _self, _task: False)
    seen: list[float] = []
    with opened(story_model, on_progress=seen.append) as pool:
        assert pool.submit(PROMPT, max_tokens=4).result(60).text
        paths = {worker.load.model for worker in pool._group.alive}
    assert len(paths) == 2 and all("cluster/models" in path for path in paths)
    assert len(seen) > 4


def test_a_node_with_too_little_memory_is_reported_before_anything_is_loaded(
    cluster: ClusterHere, story_model: Path
) -> None:
    with pytest.raises(MemoryRefused, match=r"Node a: .*needs more memory"):
        opened(story_model, n_ctx=1 << 20, parallel=64)


def test_another_llama_is_refused_unless_asked_for(cluster: ClusterHere, story_model: Path, tmp_path: Path) -> None:
    other = named(cluster, "b")
    other.hello = msgspec.structs.replace(other.hello, llama={**other.hello.llama, "commit": "older"})
    with pytest.raises(ConfigError, match=r"node b has another llama.cpp \(commit: older instead of"):
        opened(story_model)
    with cluster_here(tmp_path / "mixed", "a", "b") as mixed, pytest.MonkeyPatch.context() as patch:
        patch.setattr(placed, "Cluster", lambda _address, *_calls: mixed)
        other = named(mixed, "b")
        other.hello = msgspec.structs.replace(other.hello, llama={**other.hello.llama, "commit": "older"})
        with opened(story_model, cluster=ClusterSpec(mixed=True)) as pool:
            assert places(pool) == ["a", "b"]
            assert {node.llama["commit"] for node in pool.nodes()} >= {"older"}
            job, settings = pool.submit(PROMPT, max_tokens=2), Settings.from_environment()
            job.result(60)
            keep(job, pool, datetime.now(UTC), settings, prompt=PROMPT)
    with History.open(settings.history) as history:
        kept = history.trial(job.id)
    assert kept is not None and kept.versions["node b"].startswith("has another llama.cpp (commit: older instead of")
    assert "node a" not in kept.versions


@pytest.mark.parametrize(
    "name, is_folder", [("logitbench", False), (SOURCES, False), ("torch", True), ("transformers", True)]
)
def test_other_packages_are_refused_where_they_run_the_model(
    cluster: ClusterHere, story_model: Path, story_folder: Path, name: str, is_folder: bool
) -> None:
    other = named(cluster, "b")
    other.hello = msgspec.structs.replace(other.hello, versions={**other.hello.versions, name: "0.0.9"})
    with pytest.raises(
        ConfigError, match=rf"node b has another {name} \(0.0.9 instead of [^)]+\).*or allow mixed nodes"
    ):
        opened(story_folder if is_folder else story_model)


def test_packages_that_do_not_run_the_model_may_differ(cluster: ClusterHere, story_model: Path) -> None:
    other = named(cluster, "b")
    other.hello = msgspec.structs.replace(other.hello, versions={**other.hello.versions, "torch": "0.4"})
    with opened(story_model) as pool:
        assert places(pool) == ["a", "b"] and mixture_of(pool) == {}


def test_a_cluster_that_lost_its_last_node_is_said_so(cluster: ClusterHere, story_model: Path) -> None:
    for node in list(cluster.nodes):
        node.lose("its switch is off")
    with pytest.raises(ServerFailed, match="no node of the cluster here is there any more"):
        opened(story_model)


def test_a_start_ends_with_the_cluster(cluster: ClusterHere, monkeypatch: pytest.MonkeyPatch) -> None:
    node = named(cluster, "a")
    monkeypatch.setattr(node, "tell", lambda _message: cluster._listener.close())
    with pytest.raises(WorkerDied, match="node a: the cluster was closed"):
        node.start_worker("engine.pool.worker", "")


def test_an_unknown_question_is_an_error_and_not_a_silence(cluster: ClusterHere) -> None:
    node = named(cluster, "a")
    with pytest.raises(ConfigError, match="does not know the question"):
        node.ask("format_disk")
    assert node.ask("about_llama")["commit"]


def test_a_hung_question_ends_and_its_node_goes_on(cluster: ClusterHere, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(node_files.NodeFiles, "abort", lambda *_given: goes_on.wait(60))  # its disk hangs
    node = cluster.add("c")
    with monkeypatch.context() as patch:
        patch.setattr(remote_node, "ANSWER_S", 1.0)
        with pytest.raises(WorkerDied, match=r"node c has not answered for \d s"):
            node.ask("abort", "key", "sender")
    goes_on.set()
    assert not node.is_lost and node.ask("about_llama")["commit"]


def named(cluster: ClusterHere, name: str) -> RemoteNode:
    return next(node for node in cluster.nodes if node.name == name)


def pids(pool: Pool) -> list[int]:
    return [worker.pid for worker in pool.workers()]
