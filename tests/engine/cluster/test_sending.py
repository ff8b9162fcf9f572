"""Model files on real nodes: sent over the connection of an agent, loaded from there, and given up with the cluster."""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine import Pool
from engine.cluster import model_on_nodes
from engine.cluster.cluster import Cluster
from engine.cluster.file_sending import send_model
from engine.cluster.model_files import FileOffer, ModelOffer, model_offer
from engine.errors import EngineError, PoolClosed
from engine.models import read_model
from tests.ray_cluster import RayCluster, ray_cluster

pytestmark = pytest.mark.slow

_OWN = 900
"""File descriptor of a folder: a path through it exists in this process alone, although all nodes share the disk."""


@pytest.fixture(scope="module")
def ray() -> Iterator[RayCluster]:
    with ray_cluster("b", "c") as cluster:
        yield cluster


def of_this_process(model: ModelOffer) -> Iterator[ModelOffer]:
    """Yield the offer of a model by a path that no other process has."""
    folder = os.open(Path(model.path).parent, os.O_RDONLY)
    try:
        os.dup2(folder, _OWN)
        yield ModelOffer(f"/proc/self/fd/{_OWN}/{Path(model.path).name}", model.is_folder, model.files)
    finally:
        os.close(_OWN)
        os.close(folder)


@pytest.fixture
def offer(story_model: Path) -> Iterator[ModelOffer]:
    yield from of_this_process(model_offer(read_model(story_model)))


def test_a_file_is_sent_once_and_found_at_the_same_path(ray: RayCluster, story_model: Path, offer: ModelOffer) -> None:
    with Cluster(ray.address) as cluster:
        first, other = cluster.nodes
        shares: list[float] = []
        sent = send_model(offer, first, lambda share, _doing: shares.append(share), 1 << 20)
        assert Path(sent).read_bytes() == story_model.read_bytes()
        assert Path(sent).is_relative_to(ray.home)
        assert shares == sorted(shares) and shares
        assert send_model(offer, other, lambda _share, _doing: None) == sent
        same = model_offer(read_model(story_model))
        assert send_model(same, other, lambda _share, _doing: None) == str(story_model)


def test_a_pool_sends_what_its_nodes_lack_and_loads_it_there(
    ray: RayCluster, story_model: Path, offer: ModelOffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_on_nodes, "model_offer", lambda _model, _tell: offer)
    shares: list[float] = []
    with Pool(story_model, cluster=ray.address, instances=2, threads=1, n_ctx=256, on_progress=shares.append) as pool:
        assert pool.submit("Once", max_tokens=4).result().text
        assert {node.num_workers for node in pool.nodes()} == {1}
        paths = {worker.load.model for worker in pool._group.alive}
    (path,) = paths
    assert Path(path).is_relative_to(ray.home)
    assert any(0 < share <= 0.5 for share in shares) and max(shares) == 1


def test_a_load_that_is_aborted_while_files_are_sent_ends_and_goes_on_later(
    ray: RayCluster, tmp_path: Path, story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = tmp_path / "large.gguf"
    large.write_bytes(story_model.read_bytes() + os.urandom(64 << 20))
    content = hashlib.sha256(large.read_bytes()).hexdigest()
    whole = ModelOffer(str(large), False, (FileOffer(large.name, large.stat().st_size, content),))
    aborts: list[Callable[[], None]] = []

    def stop(share: float) -> None:
        if share > 0.1:
            aborts[-1]()

    for offer in of_this_process(whole):
        monkeypatch.setattr(model_on_nodes, "model_offer", lambda _model, _tell, offer=offer: offer)
        with pytest.raises(PoolClosed, match="cancelled"):
            Pool(large, cluster=ray.address, threads=1, n_ctx=256, on_progress=stop, on_opening=aborts.append)
        folder = ray.home / "cluster" / "models" / offer.key
        (partial,) = folder.iterdir()
        assert partial.name.startswith(".") and 0 < partial.stat().st_size < whole.size
        with Cluster(ray.address) as cluster:
            path = send_model(offer, cluster.nodes[0], lambda _share, _doing: None)
            assert Path(path).stat().st_size == whole.size


def test_a_node_without_room_is_named(ray: RayCluster, offer: ModelOffer) -> None:
    huge = ModelOffer(offer.path, False, (replace_size(offer.files[0], 1 << 50),))
    with Cluster(ray.address) as cluster, pytest.raises(EngineError, match=r"Node b cannot have story.gguf: it needs"):
        send_model(huge, next(node for node in cluster.nodes if node.name == "b"), lambda _share, _doing: None)


def replace_size(file: FileOffer, size: int) -> FileOffer:
    return FileOffer(file.name, size, "ab" * 32)
