"""Embedding backends with the real model: vectors as close to float32's as promised, whatever the texts are."""

import importlib.util
import os
import shutil
import signal
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import psutil
import pytest

from engine.embedding import backends
from engine.embedding.agreement import agreement
from engine.embedding.backends import KINDS, available, usable
from engine.embedding.exports import FILES, open_export
from engine.embedding.models import find_model
from engine.embedding.pool import EmbeddingPool
from engine.embedding.specs import EmbedSpec
from engine.errors import ConfigError, ModelError
from tests.engine.embedding.conftest import TEXTS
from tests.waiting import until

pytestmark = pytest.mark.slow

WORST_COSINES = {
    "torch-bf16": 0.98,
    "onnx": 0.9999,
    "onnx-int8": 0.9,
    "openvino": 0.9999,
    "openvino-bf16": 0.98,
}


@pytest.fixture(params=WORST_COSINES)
def backend(request: pytest.FixtureRequest, kept_home: Path) -> str:
    """Each backend for model folders but the reference; OpenVINO in bfloat16 only where the processor supports it."""
    name: str = request.param
    if name == "openvino-bf16" and "avx512_bf16" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no bfloat16")
    return name


def test_vectors_are_those_of_float32(backend: str, embedder: EmbeddingPool) -> None:
    with EmbeddingPool(EmbedSpec(backend=backend, workers=2, threads=1, tokens_per_batch=128)) as pool:
        done = pool.submit([*TEXTS, "word " * 1_000]).result(120)
        assert (pool.backend, pool.dim, pool.max_tokens) == (backend, embedder.dim, embedder.max_tokens)
    truth = embedder.submit([*TEXTS, "word " * 1_000]).result(60)
    found = agreement(done.vectors, truth.vectors)
    assert found.worst_cosine >= WORST_COSINES[backend]
    assert found.rank_correlation > 0.9
    assert done.num_tokens == truth.num_tokens
    assert np.flatnonzero(done.is_cut).tolist() == [len(TEXTS)]


@pytest.mark.parametrize("backend", ["onnx", "openvino"], indirect=True)
def test_a_worker_of_several_threads_works_and_is_replaced(backend: str, embedder: EmbeddingPool) -> None:
    with EmbeddingPool(EmbedSpec(backend=backend, threads=2)) as pool:
        before = pool.embed(TEXTS)
        os.kill(pool.measure().workers[0].pid, signal.SIGKILL)
        assert pool.embed(TEXTS) == pytest.approx(before, abs=1e-4)
    assert before == pytest.approx(embedder.embed(TEXTS), abs=1e-3)


def test_an_export_is_made_once(kept_home: Path) -> None:
    with EmbeddingPool(EmbedSpec(backend="onnx")):
        pass
    file = find_model("").kept_in() / "onnx" / FILES["onnx"]
    assert file.is_relative_to(kept_home)
    before = file.stat().st_mtime_ns
    with EmbeddingPool(EmbedSpec(backend="onnx")):
        pass
    assert file.stat().st_mtime_ns == before
    assert not [path for path in file.parents[1].iterdir() if path.name.startswith(".")]


def test_a_damaged_export_is_said(home: Path, exported: Path) -> None:
    file = find_model("").kept_in() / "onnx" / FILES["onnx"]
    shutil.copytree(exported / file.parent.relative_to(home), file.parent)
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelError, match="delete its folder"):
        EmbeddingPool(EmbedSpec(backend="onnx", threads=1))


def test_an_export_that_has_no_room_is_said_and_leaves_nothing(home: Path) -> None:
    (home / "embedding").write_text("a file where a folder is needed")
    with pytest.raises(ModelError, match="cannot be exported as onnx"):
        EmbeddingPool(EmbedSpec(backend="onnx"))


def test_a_killed_export_leaves_nothing(home: Path) -> None:
    exports = find_model("").kept_in()
    failures: list[ModelError] = []

    def export() -> None:
        with pytest.raises(ModelError) as caught:
            open_export(str(find_model("").path), str(exports), "onnx")
        failures.append(caught.value)

    def children() -> list[psutil.Process]:
        return [one for one in psutil.Process().children() if "engine.embedding.export" in one.cmdline()]

    exporting = threading.Thread(target=export)
    exporting.start()
    until(lambda: children() and list(exports.glob(".export.scratch-*")), "the export does not start")
    (making,) = exports.glob(".export.scratch-*")
    (making / "unfinished").write_bytes(b"half a model")
    children()[0].kill()
    exporting.join(60)
    assert "SIGKILL" in str(failures[0])
    assert list(exports.iterdir()) == []


def test_every_backend_of_a_folder_can_be_used_here() -> None:
    assert usable(find_model("")) == [kind.name for kind in KINDS if not kind.is_gguf]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that ONNX Runtime and OpenVINO were never installed."""
    found = importlib.util.find_spec

    def find_spec(name: str) -> ModuleSpec | None:
        return None if name in ("onnx", "onnxruntime", "openvino") else found(name)

    monkeypatch.setattr(backends, "find_spec", find_spec)


@pytest.mark.usefixtures("bare")
def test_what_is_not_installed_is_said_with_what_to_do() -> None:
    reasons = dict(available())
    assert reasons["torch"] == reasons["torch-bf16"] == reasons["llama"] == ""
    assert "pip install onnx onnxruntime" in reasons["onnx"] == reasons["onnx-int8"]
    assert "pip install onnx openvino" in reasons["openvino"]
    with pytest.raises(ConfigError, match="pip install onnx onnxruntime"):
        EmbeddingPool(EmbedSpec(backend="onnx"))
