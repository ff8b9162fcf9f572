"""Choice of the backend for "auto": by measurements, never by a constant."""

import math
from pathlib import Path

import pytest

from engine.embedding import choice
from engine.embedding.agreement import SAME, Agreement
from engine.embedding.choice import (
    BackendSpeed,
    Measurement,
    backend_table,
    chosen_backend,
    keep_measurement,
    kept_measurement,
)
from engine.embedding.models import EmbeddingModel, find_model
from engine.embedding.pool import EmbeddingPool

NEAR, NEARLY, FAR = Agreement(0.99995, 1.0, 1.0), Agreement(0.9985, 0.999, 0.99), Agreement(0.96, 0.99, 0.98)
FIGURES = (
    BackendSpeed("torch", speedup=1.0, agreement=SAME),
    BackendSpeed("torch-bf16", speedup=1.7, agreement=NEARLY),
    BackendSpeed("onnx", speedup=1.1, agreement=NEAR),
    BackendSpeed("onnx-int8", speedup=2.2, agreement=FAR),
    BackendSpeed("openvino", reason="it could not be loaded"),
)


@pytest.fixture
def model() -> EmbeddingModel:
    """Installed embedding model."""
    return find_model("")


def keep(model: EmbeddingModel, *backends: BackendSpeed) -> Measurement:
    measured = Measurement(model.name, "2026-11-21T12:00:00+00:00", 83, 5, backends)
    keep_measurement(model, measured)
    return measured


def test_the_fastest_that_is_near_enough_is_found() -> None:
    measured = Measurement("m", "2026-11-21T12:00:00+00:00", 83, 5, FIGURES)
    assert measured.fastest() == "onnx"
    assert measured.fastest(0.998) == "torch-bf16"
    assert measured.fastest(0.9) == "onnx-int8"
    assert Measurement("m", "", 83, 5, FIGURES[3:]).fastest() is None


def test_auto_is_float32_until_something_was_measured(model: EmbeddingModel) -> None:
    assert kept_measurement(model) is None
    assert chosen_backend(model) == "torch"


def test_auto_is_the_fastest_that_changes_no_vector(model: EmbeddingModel) -> None:
    assert kept_measurement(model) is None
    keep(model, *FIGURES)
    assert chosen_backend(model) == "onnx"
    keep(model, *FIGURES[:2])
    assert chosen_backend(model) == "torch"


def test_what_was_measured_is_kept(model: EmbeddingModel) -> None:
    measured = keep(model, *FIGURES[:4])
    kept = kept_measurement(model)
    assert kept is not None
    assert (kept.model, kept.measured, kept.num_texts, kept.num_rounds) == (model.name, measured.measured, 83, 5)
    assert [row.to_dict() for row in kept.backends] == [row.to_dict() for row in measured.backends]


def test_what_is_no_longer_installed_is_not_chosen(model: EmbeddingModel, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(model, *FIGURES)
    monkeypatch.setattr(choice, "usable", lambda _model: ["torch", "torch-bf16"])
    assert chosen_backend(model) == "torch"


@pytest.mark.parametrize(("name", "value"), [("cpu_name", "Another CPU"), ("num_cores", 64)])
def test_another_machine_measures_for_itself(
    model: EmbeddingModel, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    keep(model, *FIGURES)
    monkeypatch.setattr(choice, name, lambda: value)
    assert kept_measurement(model) is None


def test_a_damaged_file_counts_as_none(model: EmbeddingModel) -> None:
    keep(model, *FIGURES)
    (kept,) = model.kept_in().glob("backends-*.msgpack")
    kept.write_bytes(b"\x93no")
    assert chosen_backend(model) == "torch"


def test_a_home_that_cannot_be_written_costs_only_that(model: EmbeddingModel, home: Path) -> None:
    (home / "embedding").write_text("a file where a folder is needed")
    keep(model, *FIGURES)
    assert chosen_backend(model) == "torch"


def test_the_table_has_every_backend_of_a_folder(model: EmbeddingModel) -> None:
    rows = {row.name: row for row in backend_table(model, keep(model, *FIGURES))}
    assert list(rows) == ["torch", "torch-bf16", "onnx", "onnx-int8", "openvino", "openvino-bf16"]
    assert rows["onnx"].speedup == 1.1
    assert rows["openvino"].reason == "it could not be loaded"
    assert rows["openvino-bf16"].reason == "not measured yet"
    assert rows["openvino-bf16"].to_dict()["worst_cosine"] is None
    assert math.isnan(rows["openvino-bf16"].speedup)


@pytest.mark.usefixtures("quick_embedding")
def test_a_pool_says_which_it_took() -> None:
    with EmbeddingPool() as pool:
        assert (pool.spec.backend, pool.backend) == ("auto", "onnx")


def test_a_copy_in_another_place_is_the_same_model(model: EmbeddingModel, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in model.path.glob("*.*"):
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "1_Pooling").mkdir()
    (copy / "1_Pooling" / "config.json").write_bytes((model.path / "1_Pooling" / "config.json").read_bytes())
    (copy / "README.md").write_text("other words")
    assert find_model(str(copy)).content_hash() == model.content_hash()
    (copy / "1_Pooling" / "config.json").write_text("{}")
    assert find_model(str(copy)).content_hash() != model.content_hash()
