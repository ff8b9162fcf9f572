"""Models that load but return no numbers, and models that do not load."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from engine.embedding.models import find_model
from engine.embedding.pool import EmbeddingPool
from engine.embedding.specs import EmbedSpec
from engine.errors import ModelError, PoolClosed
from tests.engine.embedding.conftest import TEXTS

pytestmark = pytest.mark.slow


def copied(tmp_path: Path) -> Path:
    shutil.copytree(find_model("").path, tmp_path / "model")
    return tmp_path / "model"


def test_a_vector_that_is_no_number_is_refused_and_the_others_are_well(tmp_path: Path, embedder: EmbeddingPool) -> None:
    folder = copied(tmp_path)
    weights = load_file(folder / "model.safetensors")
    zebra = (folder / "vocab.txt").read_text("utf-8").splitlines().index("zebra")
    weights["embeddings.word_embeddings.weight"][zebra] = np.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with EmbeddingPool(EmbedSpec(model=str(folder), backend="torch-bf16")) as pool:
        with pytest.raises(ModelError, match="text 4 of 5: its vector has non-finite values"):
            pool.embed([*TEXTS[:3], "a zebra", "a horse"])
        likeness = (pool.embed(TEXTS) * embedder.embed(TEXTS)).sum(axis=1)
        assert likeness.min() > 0.999
        assert likeness.mean() < 1 - 1e-6
        job = pool.submit(TEXTS * 50)
    with pytest.raises(PoolClosed):
        job.result(60)
    with pytest.raises(PoolClosed):
        pool.embed(["text"])


def test_a_model_of_an_unknown_kind_is_said(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    (folder / "config.json").write_text('{"model_type": "perpetuum_mobile"}')
    with pytest.raises(ModelError, match="cannot be loaded as an embedding model.*perpetuum_mobile"):
        EmbeddingPool(EmbedSpec(model=str(folder)))
