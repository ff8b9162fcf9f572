"""A head that moves: the cluster of this machine ends, and another one is there at another address."""

import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from engine.cluster import cluster as clusters
from engine.cluster.cluster import Cluster
from tests.ray_cluster import RayCluster, ray_cluster
from tests.waiting import until

pytestmark = pytest.mark.slow
pytest.importorskip("ray")

SLOW_START_S = 180
RECONNECT_S = "5"
"""How long Ray looks for a head that is gone before it ends, in place of 60 s."""


def test_auto_finds_the_cluster_of_this_machine_at_its_new_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", RECONNECT_S)
    monkeypatch.setattr(clusters, "AUTO_S", 1e9)
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:  # Ray needs a short path
        monkeypatch.setenv("RAY_TMPDIR", folder)  # where "auto" looks, among the clusters of other tests
        with ExitStack() as both:
            first = both.enter_context(closing(RayCluster()))
            first.add("a")
            cluster = both.enter_context(closing(Cluster("auto")))
            assert cluster.nodes[0].name == "a"
            second = both.enter_context(ray_cluster("b"))
            first.close()
            until(lambda: not cluster.nodes, "the nodes of the cluster that ended are still used")
            (Path(folder) / "ray" / "ray_current_cluster").write_text(second.address)  # the first one removed it
            monkeypatch.setattr(clusters, "AUTO_S", 0.0)
            until(lambda: [node.name for node in cluster.nodes] == ["b"], "it is not found", SLOW_START_S)
            assert cluster._joined == second.address != first.address
