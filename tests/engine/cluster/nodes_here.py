"""Nodes without Ray: agents on threads of this process, and what a pool needs of a cluster of them."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.cluster import messages as c
from engine.cluster.agent import Agent
from engine.cluster.cluster import TICK_S
from engine.cluster.listener import Listener
from engine.cluster.remote_node import RemoteNode
from engine.errors import JobTimeout, WorkerDied
from engine.jobs import Job


class ClusterHere:
    """Stands for engine.cluster.cluster.Cluster, with an agent in this process for each name.

    home: folder under which each node has its own. port: where agents and workers dial in.
    """

    address = "here"

    def __init__(self, home: Path, *names: str) -> None:
        self._home = home
        self.changed, self.failures = threading.Condition(), dict[str, str]()
        self._listener = Listener("127.0.0.1")
        self.port = self._listener.port
        self.nodes: list[RemoteNode] = []
        self.threads: list[threading.Thread] = []
        self.is_closed = False
        threading.Thread(target=self._watch, daemon=True).start()
        for name in names:
            self.add(name)

    def add(self, name: str, cores: int = 1, port: int = 0) -> RemoteNode:
        """Start an agent; port: of a relay through which it and its workers dial."""
        token, dialled = self._listener.expect()
        agent = Agent(self._listener.host, port or self.port, token, self._home / name)
        thread = threading.Thread(target=agent.serve, daemon=True)
        thread.start()
        node = RemoteNode(
            c.Found(f"id-{name}", name, "127.0.0.1", cores), name, dialled.result(60), self._listener, self._lost
        )
        with self.changed:
            self.nodes.append(node)
            self.threads.append(thread)
            self.changed.notify_all()
        return node

    def _watch(self) -> None:
        """Tell agents that this program runs, and count their silence, as a real cluster does."""
        before = time.monotonic()
        while not self.is_closed:
            time.sleep(TICK_S)
            now = time.monotonic()
            for node in list(self.nodes):
                node.tick(min(now - before, 2 * TICK_S))
            before = now

    def _lost(self, node: RemoteNode) -> None:
        with self.changed:
            self.nodes.remove(node)
            self.changed.notify_all()

    def failure_of(self, id: str) -> str:
        """As a real cluster, of what a test has put into `failures` by ids."""
        return self.failures.get(id, "")

    def close(self) -> None:
        """End every agent."""
        self.is_closed = True
        for node in list(self.nodes):
            node.lose("the cluster was closed")
        self._listener.close()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive(), "an agent outlived its front"


@contextlib.contextmanager
def cluster_here(home: Path, *names: str) -> Iterator[Any]:
    """A cluster of agents in this process."""
    with contextlib.closing(ClusterHere(home, *names)) as cluster:
        yield cluster


def death_of(job: Job) -> WorkerDied | None:
    """Return why the worker of a job died, None where the job has its result."""
    try:
        job.result(60)
    except JobTimeout:
        raise
    except WorkerDied as error:
        return error
    return None
