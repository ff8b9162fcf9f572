"""A disk of a node that fills up while a model arrives there, over the connection of a real agent."""

import hashlib
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from engine import files
from engine.cluster import node_files
from engine.cluster.file_sending import send_model
from engine.cluster.model_files import FileOffer, Have, ModelOffer
from engine.errors import ModelError
from tests.engine.cluster.nodes_here import cluster_here

KIB = 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this process may not mount a disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_fills_up_meanwhile_is_reported_and_the_transfer_goes_on_once_there_is_room(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_files._Arriving, "_is_at_front_path", lambda _self, _task: False)
    monkeypatch.setattr(files, "SPARE_BYTES", 0)
    model, filler = tmp_path / "large.gguf", small_disk / "filler"
    model.write_bytes(os.urandom(800 * KIB))
    hashed = hashlib.sha256(model.read_bytes()).hexdigest()
    offer = ModelOffer(str(model), False, (FileOffer(model.name, model.stat().st_size, hashed),))
    blocks: list[int] = []

    def fill(share: float, _doing: str) -> None:
        if share > 0.3 and not filler.exists():
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(4 * KIB))

    with cluster_here(small_disk, "a") as cluster:
        node = cluster.nodes[0]
        with pytest.raises(
            ModelError, match=r"Node a cannot have large.gguf: it needs \d+ kB more on the disk of .*kept"
        ):
            send_model(offer, node, fill, 32 * KIB)
        filler.unlink()
        call = node.call

        def counted(method: str, *arguments: Any) -> "Future[Have]":
            blocks.extend(arguments[3:4] if method == "block" else ())
            answer: Future[Have] = call(method, *arguments)
            return answer

        monkeypatch.setattr(node, "call", counted)
        path = send_model(offer, node, lambda _share, _doing: None, 32 * KIB)
        assert Path(path).read_bytes() == model.read_bytes() and Path(path).is_relative_to(small_disk)
    assert min(blocks) >= 0.3 * offer.size  # what had arrived is not sent again
