"""Prefill ceiling: the sum over the layers is right, real workers find it, and unsupported models are refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.bench.measurement import ceiling
from engine.bench.measurement.ceiling import ceiling_key, prefill_ceiling, shape_of
from engine.errors import ConfigError
from engine.models.gguf import ModelFile
from engine.models.reading import read_model
from engine.models.shapes import SHAPES, Shape
from engine.models.synthetic import has_more_bits, write_synthetic


def model_of(shape: str, folder: Path, quantisation: str = "Q4_K_M") -> ModelFile:
    path = folder / f"{shape}-{quantisation}.gguf"
    write_synthetic(shape, path, quantisation)
    return read_model(path)


@pytest.mark.parametrize("name", ["tiny", "tiny-tied", "tiny-phi", "tiny-gemma"])
def test_the_shape_of_a_file_is_the_one_it_was_made_from(name: str, tmp_path: Path) -> None:
    found, shape = shape_of(model_of(name, tmp_path)), SHAPES[name]
    same = (
        "architecture", "n_vocab", "n_ctx_train", "n_embd", "n_layer", "n_head", "n_head_kv", "n_ff", "n_head_dim",
    )  # fmt: skip
    assert [getattr(found, field) for field in same] == [getattr(shape, field) for field in same]
    assert found.n_rot == (shape.n_rot or shape.n_head_dim)


def test_the_ceiling_is_all_layers_but_the_last_and_the_last_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times are made up: a plain layer takes 1 s, one with more bits 3 s, each run 0.25 s and the last layer 0.5 s."""
    asked = []

    def made_up(times: ceiling._Times, path: Path, layout: ceiling._Layout) -> float:
        asked.append((path.name, layout))
        file = read_model(path)
        has_more = any(tensor.name == "blk.0.ffn_down.weight" and tensor.type.name == "Q6_K" for tensor in file.tensors)
        is_slow = layout != (2, 4, True)
        return (0.25 + 0.5 + (file.n_layer - 1) * (3 if has_more else 1)) * (1.5 if is_slow else 1)

    monkeypatch.setattr(ceiling._Times, "_best", made_up)
    shares: list[float] = []
    found = prefill_ceiling(model_of("tiny", tmp_path), 130, shares.append)
    num_more = sum(has_more_bits(layer, 8) for layer in range(8))
    assert (num_more, has_more_bits(7, 8)) == (4, True)
    assert 1 / found == pytest.approx(0.25 + 4 * 1 + 3 * 3 + 0.5)
    assert len(asked) == len(set(asked)) == 8 + 3
    assert shares == sorted(shares)
    assert (len(shares), shares[-1]) == (11, 1)


@pytest.mark.slow
def test_it_is_found_with_real_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling, "_LEAST_S", 0.01)
    shares: list[float] = []
    assert 0 < prefill_ceiling(model_of("tiny", tmp_path, "Q8_0"), 700, shares.append) < 1e9
    assert shares[-1] == 1


def test_prompts_of_about_the_same_length_share_a_ceiling(tmp_path: Path) -> None:
    model = model_of("tiny", tmp_path)
    assert ceiling_key(model, 512) == ceiling_key(model, 1000) != ceiling_key(model, 1024)
    assert ceiling_key(model, 1) == ceiling_key(model, 33)
    assert ceiling_key(model, 2048) == ceiling_key(model, 100_000)
    assert ceiling_key(model, 512) != ceiling_key(replace(model, quantisation="Q8_0"), 512)


def test_models_whose_layers_cannot_be_made_are_refused(tmp_path: Path) -> None:
    model = model_of("tiny", tmp_path)
    with pytest.raises(ConfigError, match=r"best prefill cannot be measured for the architecture gemma4"):
        prefill_ceiling(replace(model, architecture="gemma4"))
    with pytest.raises(ConfigError, match=r"best prefill cannot be measured for IQ3_XXS; supported: .*Q4_K_M"):
        prefill_ceiling(replace(model, quantisation="IQ3_XXS"))
    with pytest.raises(ConfigError, match="architecture"):
        shape_of(replace(model, head_k=2 * model.head_k))
    assert isinstance(shape_of(model), Shape)
