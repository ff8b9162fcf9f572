"""Models that load but give no numbers, and such as do not load."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine.embedding.exports import FILES
from engine.embedding.models import find_model
from engine.embedding.pool import EmbeddingPool
from engine.embedding.specs import EmbedSpec
from engine.errors import ModelError, PoolClosed
from tests.engine.embedding.conftest import TEXTS


def damage(word: str) -> None:
    """Give a word of the exported model a vector that is no number, in the home folder of this test alone."""
    found = find_model("")
    folder = found.kept_in() / "onnx"
    graph = onnx.load(folder / FILES["onnx"])
    words = (found.path / "vocab.txt").read_text("utf-8").splitlines()
    (table,) = [weights for weights in graph.graph.initializer if weights.dims[0] == len(words)]
    vectors = onnx.numpy_helper.to_array(table).copy()
    vectors[words.index(word)] = np.nan
    table.CopyFrom(onnx.numpy_helper.from_array(vectors, table.name))
    shared = folder.resolve()
    folder.unlink()
    shutil.copytree(shared, folder)
    onnx.save(graph, folder / FILES["onnx"])


@pytest.mark.usefixtures("unmeasured_export")
def test_a_vector_that_is_no_number_is_refused_and_the_others_are_well() -> None:
    spec = EmbedSpec(backend="onnx", workers=2, threads=1)
    with EmbeddingPool(spec) as pool:
        well = pool.embed(TEXTS)
    damage("zebra")
    with EmbeddingPool(spec) as pool:
        with pytest.raises(ModelError, match="text 4 of 5: its vector has numbers that are not finite"):
            pool.embed([*TEXTS[:3], "a zebra", "a horse"])
        assert pool.embed(TEXTS) == pytest.approx(well, abs=1e-6)
        job = pool.submit(TEXTS * 50)
    with pytest.raises(PoolClosed):
        job.result(10)
    with pytest.raises(PoolClosed):
        pool.embed(["text"])


def test_a_model_of_an_unknown_kind_is_said(tmp_path: Path) -> None:
    folder = shutil.copytree(find_model("").path, tmp_path / "model")
    (folder / "config.json").write_text('{"model_type": "perpetuum_mobile"}')
    with pytest.raises(ModelError, match="cannot be loaded as an embedding model.*perpetuum_mobile"):
        EmbeddingPool(EmbedSpec(model=str(folder)))
