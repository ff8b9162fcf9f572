"""The list of nodes while no cluster answers: no program is started for it, and it is said once."""

import logging

import pytest

from engine.cluster import cluster as clusters
from engine.cluster import messages as c
from engine.cluster.cluster import Cluster
from engine.errors import ServerFailed
from tests.processes import free_port

pytest.importorskip("ray")


def test_a_cluster_that_is_away_is_told_once_and_costs_no_program(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def made(*_given: object, **_more: object) -> None:
        raise AssertionError("a program was started")

    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setattr(clusters, "Program", made)
    with pytest.raises(ServerFailed, match="no Ray cluster answers"):
        Cluster(address)
    monkeypatch.setattr(Cluster, "_open", lambda _self: None)
    with Cluster(address) as cluster, caplog.at_level(logging.WARNING):
        for _ in range(3):
            cluster._look_for_nodes()
        assert [record.getMessage() for record in caplog.records if "not known" in record.getMessage()][1:] == []
        with monkeypatch.context() as patch:
            patch.setattr(cluster, "_list", lambda: c.Listing([], "127.0.0.1", {}, False))
            cluster._look_for_nodes()
        cluster._look_for_nodes()
        assert sum("not known at present" in record.getMessage() for record in caplog.records) == 2
