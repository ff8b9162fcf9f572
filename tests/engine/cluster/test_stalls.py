"""Networks that stall: a node behind a relay that stops forwarding in one or both directions, for a while or not."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.cluster import messages as c
from engine.cluster import node_files
from engine.cluster.file_sending import send_model
from engine.cluster.model_files import model_offer
from engine.cluster.specs import ClusterSpec
from engine.errors import WorkerDied
from engine.models import read_model
from engine.pool import placed
from engine.pool.pool import Pool
from tests.engine.cluster.nodes_here import ClusterHere, cluster_here, death_of
from tests.relay import Relay, Way
from tests.waiting import until

pytestmark = pytest.mark.slow

LOST_S = 6.0
"""Limit of silence where a node is to be lost; the own limit of the engine where it must not be."""
STALL_S = 2.0
SMALL: dict[str, Any] = {"threads": 1, "parallel": 2, "n_ctx": 256}
PROMPT = "Once upon a time"
WAYS: list[tuple[Way, ...]] = [("up", "down"), ("up",), ("down",)]
ways_of = pytest.mark.parametrize("ways", WAYS, ids=["both", "to the front", "to the node"])


class Stalling:
    """A cluster whose node a is reached at once, and b through `relay`."""

    def __init__(self, cluster: ClusterHere) -> None:
        self.cluster = cluster
        cluster.add("a")
        self.relay = Relay(cluster.port)
        self.node = cluster.add("b", port=self.relay.port)
        self.agent = cluster.threads[-1]


@pytest.fixture
def stalling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Stalling]:
    with cluster_here(tmp_path) as cluster:
        one = Stalling(cluster)
        monkeypatch.setattr(placed, "Cluster", lambda _address, *_calls: cluster)
        yield one
        one.relay.close()


@contextmanager
def opened(model: Path, lost_s: float = LOST_S) -> Iterator[Pool]:
    """A pool on both nodes, with a limit of silence of its own once it runs."""
    with Pool(model, cluster=ClusterSpec(workers={"a": 1, "b": 1}), **SMALL) as pool, limit(lost_s):
        yield pool


@contextmanager
def limit(lost_s: float = LOST_S) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(c, "LOST_S", lost_s)
        yield


def pids(pool: Pool) -> dict[str, int]:
    return {worker.node: worker.pid for worker in pool.workers()}


@ways_of
def test_a_short_stall_is_waited_for(stalling: Stalling, story_model: Path, ways: tuple[Way, ...]) -> None:
    with opened(story_model, c.LOST_S) as pool:
        before = pids(pool)
        with pool.held():  # so that none ends before the network stalls
            jobs = [pool.submit(f"{number}: {PROMPT}", max_tokens=100) for number in range(8)]
            stalling.relay.stall(*ways)
        until(lambda: stalling.relay.stalled_s() > STALL_S)
        stalling.relay.resume()
        assert all(job.result(60).finish_reason in ("length", "stop") for job in jobs)
        until(lambda: stalling.node.silent_s < 1, "the node is not heard again")
        assert pids(pool) == before and not stalling.node.is_lost


@ways_of
def test_a_long_stall_is_the_loss_of_the_node_on_both_sides(
    stalling: Stalling, story_model: Path, ways: tuple[Way, ...]
) -> None:
    with opened(story_model) as pool:
        worker = psutil.Process(pids(pool)["b"])
        jobs = [pool.submit(f"{number}: {PROMPT}", max_tokens=200) for number in range(16)]
        until(lambda: any(len(job.steps) for job in jobs), "no tokens come")
        stalling.relay.stall(*ways)
        errors = [error for job in jobs if (error := death_of(job)) is not None]
        assert len(errors) <= 2 and all("lost with its node b" in str(error) for error in errors)
        until(lambda: list(pids(pool)) == ["a"], "the node is not given up")
        until(lambda: not stalling.agent.is_alive(), "its agent does not end")
        until(lambda: not worker.is_running(), "its worker does not end")
        assert pool.submit(PROMPT, max_tokens=4).result(60).text


def test_a_stall_while_a_file_is_sent_ends_the_transfer_with_the_node(
    stalling: Stalling, story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_files._Arriving, "_is_at_front_path", lambda _self, _task: False)
    offer = model_offer(read_model(story_model))

    def stall(share: float, _doing: str) -> None:
        if share > 0.2:
            stalling.relay.stall("up", "down")

    with limit(), pytest.raises(WorkerDied, match=f"node b: (it was silent for {LOST_S:g} s|its agent ended)"):
        send_model(offer, stalling.node, stall, offer.size // 20)
    until(lambda: not stalling.agent.is_alive(), "its agent does not end")
    again = stalling.cluster.add("b")
    assert Path(send_model(offer, again, lambda _share, _doing: None)).read_bytes() == story_model.read_bytes()
