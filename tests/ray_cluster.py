"""A Ray cluster of this machine for tests: several nodes, each of which can be killed and started again.

It runs in a program of its own, since Ray starts threads, takes signals and warns. Nothing of it is left at the end.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil

from engine.settings import PREFIX
from tests.waiting import until

_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_health_check_period_ms": "500"}
"""Ray gives a node up after five refused connections; it is asked for more often here than every three seconds."""
_NODE = {"include_dashboard": False, "node_ip_address": "127.0.0.1"}


class RayCluster:
    """A cluster with a head that lends no cores, and nodes of one core.

    address: where it listens; home: the home folder of all nodes; raylets: process id of each node's raylet, by name.
    """

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="ray-cluster-")
        self.home = Path(self._home.name)
        environment = os.environ | _RAY | {PREFIX + "HOME": self._home.name}
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.ray_cluster"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.address = self._answer()
        self.raylets: dict[str, int] = {}

    def _tell(self, *words: str) -> str:
        assert self._program.stdin is not None
        print(*words, file=self._program.stdin, flush=True)
        return self._answer()

    def _answer(self) -> str:
        assert self._program.stdout is not None
        for line in self._program.stdout:
            if line.startswith("> "):
                return line[2:].strip()
        raise AssertionError("the program that runs the cluster ended")

    def add(self, name: str) -> int:
        """Start a node; return the process id of its raylet."""
        self.raylets[name] = int(self._tell("add", name))
        return self.raylets[name]

    def kill(self, name: str) -> None:
        """Kill a node (SIGKILL); does not wait for its processes."""
        self._tell("kill", name)
        del self.raylets[name]

    def forget_killed(self) -> None:
        """Wait until Ray lists no node that was killed: beside one that was started again, it has the same name."""
        until(lambda: sorted(self._tell("list").split()) == sorted(self.raylets), "Ray lists a node that was killed")

    @contextmanager
    def another_version(self, ray: str) -> Iterator[None]:
        """Have the head say that the cluster was started with another version of Ray."""
        ours = self._tell("version", ray)
        try:
            yield
        finally:
            self._tell("version", ours)

    def processes(self) -> list[psutil.Process]:
        """Return the processes of all nodes, with the workers there."""
        return psutil.Process(self._program.pid).children(recursive=True)

    def processes_of(self, name: str) -> list[psutil.Process]:
        """Return the processes that a node's raylet has started."""
        try:
            return psutil.Process(self.raylets[name]).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def close(self) -> None:
        """End every process of the cluster."""
        left = self.processes() if self._program.poll() is None else []
        assert self._program.stdin is not None and self._program.stdout is not None
        self._program.stdin.close()
        try:
            self._program.wait(30)
        except subprocess.TimeoutExpired:
            self._program.kill()
            self._program.wait()
        self._program.stdout.close()
        self._home.cleanup()
        for process in left:
            if process.is_running():
                process.kill()
        until(lambda: not any(process.is_running() for process in left), "processes of the cluster stay")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


@contextmanager
def ray_cluster(*names: str) -> Iterator[RayCluster]:
    """A cluster with a node of each name."""
    with RayCluster() as cluster:
        for name in names:
            cluster.add(name)
        yield cluster


def main() -> None:
    """Run a cluster, and do what standard input says, until that ends."""
    from ray._common.usage import usage_lib  # this program alone imports it
    from ray.cluster_utils import Cluster

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cluster: Any = Cluster(initialize_head=True, head_node_args={**_NODE, "num_cpus": 0, "node_name": "head"})
    nodes = {}
    print(">", cluster.address, flush=True)
    for line in sys.stdin:
        match line.split():
            case ["add", name]:
                node = nodes[name] = cluster.add_node(**_NODE, num_cpus=1, node_name=name)
                print(">", node.all_processes["raylet"][0].process.pid, flush=True)
            case ["kill", name]:
                cluster.remove_node(nodes.pop(name), allow_graceful=False)
                print(">", name, flush=True)
            case ["list"]:
                alive = [node for node in cluster.global_state.node_table() if node["Alive"]]
                print(">", *(node["NodeName"] for node in alive if node["NodeName"] != "head"), flush=True)
            case ["version", version]:
                gcs = usage_lib.GcsClient(address=cluster.address)
                known = usage_lib.get_cluster_metadata(gcs)
                content = json.dumps(known | {"ray_version": version}).encode()
                space = usage_lib.ray_constants.KV_NAMESPACE_CLUSTER
                gcs.internal_kv_put(usage_lib.usage_constant.CLUSTER_METADATA_KEY, content, True, namespace=space)
                print(">", known["ray_version"], flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
