"""Nodes: the child program that speaks to Ray, the only one that imports it: lists nodes, and starts an agent on each.

A program of its own, since Ray ends a process whose cluster it has lost, and takes the signals of one that it connects.
"""

import contextlib
import logging
import os
import re
import socket
import threading
from collections.abc import Mapping
from typing import Any

import ray
from ray._private import ray_constants, services
from ray.exceptions import RayError
from ray.util import get_node_ip_address
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from engine.cluster import agent
from engine.cluster import messages as c
from engine.errors import ConfigError, EngineError, ServerFailed
from engine.process.serving import serve

_RECEIVES: Any = c.ToRay
_PROBE_S = 2.0
_UNUSED_S, _ENDED_S = 30.0, 5.0
"""How long the process of an agent stays where nobody starts it, and after its end, so that Ray tells how it ended."""

_VERSIONS = re.compile(r"(Ray|Python): ([^ ]{1,40})")


class _Agent:
    """Actor that is an agent until its front is gone. As it outlives this program, it ends by itself."""

    def __init__(self) -> None:
        self._end = self._end_in(_UNUSED_S)

    def run(self, host: str, port: int, token: bytes) -> None:
        self._end.cancel()
        try:
            agent.run(host, port, token)
        finally:
            self._end_in(_ENDED_S)

    def _end_in(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, os._exit, (0,))
        timer.daemon = True
        timer.start()
        return timer


class _Link:
    """Connection to the cluster, and the agents that it started. These are detached, so that a front keeps them where
    this program ends and another one connects: their lives hang on their connections to the front alone."""

    def __init__(self) -> None:
        self._agents: dict[str, tuple[Any, Any]] = {}

    def answer(self, request: c.ToRay) -> Any:
        """Answer a request. Raises EngineError: this program goes on, whatever Ray raises."""
        try:
            match request:
                case c.Connect():
                    connect(request.address)
                    return self._listing()
                case c.ListNodes():
                    return self._listing()
                case c.StartAgent():
                    return self._start(request)
        except EngineError:
            raise
        except Exception as error:
            raise ServerFailed(f"Ray failed: {last_line(error)}") from error

    def _start(self, order: c.StartAgent) -> None:
        where = NodeAffinitySchedulingStrategy(node_id=order.node, soft=False)
        options = {"num_cpus": 0, "max_restarts": 0, "lifetime": "detached", "scheduling_strategy": where}
        actor = ray.remote(**options)(_Agent).remote()
        self._agents[order.node] = (actor, actor.run.remote(order.host, order.port, order.token))

    def _listing(self) -> c.Listing:
        found = [_found(node) for node in ray.nodes() if node["Alive"]]
        return c.Listing(
            [node for node in found if node.cores],
            get_node_ip_address(),
            dict(self._failures()),
            is_authenticated(),
            ray.get_runtime_context().gcs_address,
        )

    def _failures(self) -> Any:
        """Yield node id and reason of each agent that has ended with an error, once."""
        for node, (_actor, ending) in list(self._agents.items()):
            if not ray.wait([ending], timeout=0)[0]:
                continue
            del self._agents[node]
            try:
                ray.get(ending, timeout=1)
            except Exception as error:  # whatever the agent raised, or Ray about its node
                yield node, last_line(error)


def _found(node: Mapping[str, Any]) -> c.Found:
    cores = int(node["Resources"].get("CPU", 0))
    return c.Found(node["NodeID"], node["NodeName"], node["NodeManagerAddress"], cores)


def connect(address: str) -> None:
    """Connect to a running cluster. Raises ServerFailed where there is none, ConfigError for another version."""
    try:
        _stay_on_loopback(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (RayError, RuntimeError, ConnectionError, ValueError, OSError) as error:
        raise explained(address, error) from error


def is_authenticated() -> bool:
    """Return True if the connection shows a token: Ray sets its mode itself where it finds a token of this user."""
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


def _stay_on_loopback(address: str) -> None:
    """Have Ray take 127.0.0.1 as it is for a cluster that listens nowhere else: it would put this machine's address in
    its place."""
    found = services.get_ray_address_from_environment("auto", None) if address == "auto" else address
    host, _, port = found.rpartition(":")
    if host not in ("127.0.0.1", "localhost"):
        return
    try:
        socket.create_connection((services.get_node_ip_address(), int(port)), timeout=_PROBE_S).close()
    except OSError:
        ray_constants.ENABLE_RAY_CLUSTER = False


def explained(address: str, error: Exception) -> ConfigError | ServerFailed:
    """Return the error for a cluster that cannot be joined, in words that say what to do."""
    text = " ".join(str(error).split())
    if "ersion mismatch" in text:
        versions = [f"{name} {version}" for name, version in _VERSIONS.findall(text)]
        there, here = " and ".join(versions[:2]), " and ".join(versions[2:4])
        return ConfigError(
            f"the cluster at {address} runs {there or 'another Ray or Python'}, and this machine has "
            f"{here or 'others'}: install the same here"
        )
    if address == "auto":
        return ServerFailed(
            f"no Ray cluster runs on this machine ({text[:300]}): start one with `ray start --head`, or give the "
            "address of one"
        )
    return ServerFailed(
        f"the cluster at {address} cannot be joined: {text[:600]}. Check that it runs; where it asks for a token, set "
        "RAY_AUTH_MODE=token and give this machine the token too"
    )


def last_line(error: Exception) -> str:
    """Return the last line of an error's text, which has the reason after Ray's traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:400]


def main(end: socket.socket) -> None:
    """Serve until the parent hangs up."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    link = _Link()
    try:
        serve(end, _RECEIVES, link.answer)
    finally:
        with contextlib.suppress(Exception):
            ray.shutdown()
