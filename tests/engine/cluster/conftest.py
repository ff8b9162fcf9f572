"""Fixture of the cluster tests: two nodes without Ray."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.pool import placed
from tests.engine.cluster.nodes_here import ClusterHere, cluster_here


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ClusterHere]:
    """Two nodes, a and b, which every pool of this test finds at any address."""
    with cluster_here(tmp_path, "a", "b") as one:
        monkeypatch.setattr(placed, "Cluster", lambda _address, *_calls: one)
        yield one
