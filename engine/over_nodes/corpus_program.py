"""Program that has ray.data embed the parts of a corpus on the nodes of a cluster; with engine.cluster.nodes the only
one that imports ray.

Each node holds one model. A part goes to a node that is free, which reads it, and writes its file.
"""

import os
import socket
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import ray
import ray.data
from ray.util import get_node_ip_address

from engine.cluster.agent import OF_RAY
from engine.cluster.listener import check_exposed
from engine.cluster.nodes import connect, is_authenticated, last_line
from engine.embedding.models import find_model
from engine.embedding.pool import EmbeddingPool
from engine.embedding.specs import EmbedSpec
from engine.errors import ConfigError, ServerFailed
from engine.machine.fingerprint import difference
from engine.over_nodes.corpus import EmbedParts, check, versions_of, write_part
from engine.process.serving import serve
from engine.units import counted

MOST_BLOCKS = 4096
"""Blocks of ray.data, each of which one node takes at a time."""

NO_NODE_S, _LOOK_S = 30.0, 2.0
"""How long a corpus waits where no node is left, and how often that is looked at."""
_AGAIN = "Start it again to go on"


class _Embedder:
    """Actor with the model, on a node."""

    def __init__(self, order: bytes, threads: int) -> None:
        os.environ.pop(OF_RAY, None)
        self._order = msgspec.msgpack.decode(order, type=EmbedParts)
        wanted = self._order.settings
        check(Path(self._order.out), wanted, is_mixed=self._order.is_mixed)
        self._versions = versions_of(wanted.backend)
        differing = difference(self._versions, wanted.versions)
        if differing and not self._order.is_mixed:
            raise ConfigError(
                f"node {_name()} has another {differing}: install the same one there, or allow it with --mixed"
            )
        if find_model(wanted.model).content_hash() != wanted.model_sha256:
            raise ConfigError(f"node {_name()} has another {wanted.model}: install the same one there")
        spec = EmbedSpec(model=wanted.model, backend=wanted.backend, is_query=wanted.is_query, threads=threads)
        self._pool, self._is_query = EmbeddingPool(spec), wanted.is_query

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        column, out = self._order.settings.column, Path(self._order.out)
        taken = [self._order.parts[number] for number in batch["number"].tolist()]
        parts = [part for part in taken if not (out / part.name).exists()]  # a lost node may have written some
        num_texts = sum(write_part(part, column, out, self._vectors, self._versions) for part in parts)
        return {"num_texts": np.array([num_texts])}

    def _vectors(self, texts: list[str]) -> Any:
        return self._pool.submit(texts, is_query=self._is_query).result().vectors


def _answer(order: EmbedParts) -> int:
    """Embed all parts; return the number of texts. Raises ConfigError, ServerFailed."""
    connect(order.address)
    check_exposed(get_node_ip_address(), is_authenticated=is_authenticated())
    cores = _cores()
    if not cores:
        raise ConfigError("no node of the cluster lends a core: start one with `--num-cpus` of at least 1")
    embedded: Future[int] = Future()
    threading.Thread(target=_embed, args=(order, cores, embedded), daemon=True).start()
    seen_at = time.monotonic()
    while time.monotonic() - seen_at < NO_NODE_S:
        try:
            return embedded.result(_LOOK_S)
        except FutureTimeout:
            seen_at = time.monotonic() if _cores(min(cores)) else seen_at
    raise ServerFailed(
        f"no node of the cluster with at least {counted(min(cores), 'core')} was there for {NO_NODE_S:g} s. {_AGAIN}"
    )


def _cores(least: int = 1) -> list[int]:
    """Return the cores that each node lends which lends at least so many; an actor asks for those of the smallest."""
    cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    return [each for each in cores if each >= least]


def _name() -> str:
    """Return the name of the node that runs this actor."""
    own = ray.get_runtime_context().get_node_id()
    return next((str(node["NodeName"]) for node in ray.nodes() if node["NodeID"] == own), own)


def _embed(order: EmbedParts, cores: list[int], embedded: "Future[int]") -> None:
    """Embed all parts, and set the number of texts, or the error that ended it."""
    try:
        numbers = [{"number": number} for number in range(len(order.parts))]
        done = ray.data.from_items(numbers, override_num_blocks=min(len(numbers), MOST_BLOCKS)).map_batches(
            _Embedder,
            fn_constructor_args=(msgspec.msgpack.encode(order), min(cores)),
            batch_size=1,
            num_cpus=min(cores),
            concurrency=(1, len(cores)),
        )
        embedded.set_result(sum(int(row["num_texts"]) for row in done.iter_rows()))
    except Exception as error:  # whatever an actor raised, or Ray about its node
        embedded.set_exception(ServerFailed(f"the corpus is not embedded to the end: {last_line(error)}. {_AGAIN}"))


def main(end: socket.socket) -> None:
    """Serve until the parent hangs up."""
    serve(end, EmbedParts, _answer)
