"""KV cache of each layer: windows by list and by period, and layers without their own cache, as in llama.cpp."""

from dataclasses import replace
from typing import Any

import pytest

from engine.models.gguf import ModelFile
from engine.models.kv_cache import bytes_per_token, cache_bytes, layer_caches
from engine.models.planned import planned_model
from engine.models.shapes import SHAPES
from engine.specs import PoolSpec

TINY = planned_model("tiny", SHAPES["tiny"], "F16")


def model_of(architecture: str, window: int = 128, **metadata: Any) -> ModelFile:
    """Return a model of eight layers with 2 heads × 64, and metadata keys of that architecture."""
    values = {f"{architecture}.{key.replace('__', '.')}": value for key, value in metadata.items()}
    return replace(TINY, architecture=architecture, sliding_window=window, metadata=values)


def windows(model: ModelFile) -> list[int]:
    return [layer.window for layer in layer_caches(model)]


@pytest.mark.parametrize(
    ("architecture", "metadata", "expected"),
    [
        ("llama", {}, [0] * 8),
        ("phi3", {}, [0] * 8),
        ("gemma2", {}, [128, 0] * 4),
        ("gemma3", {}, [128] * 5 + [0] + [128] * 2),
        ("cohere2", {}, [128, 128, 128, 0] * 2),
        ("smallthinker", {}, [0, 128, 128, 128] * 2),
        ("gemma3", {"attention__sliding_window_pattern": 2}, [128, 0] * 4),
        ("gemma3", {"attention__sliding_window_pattern": 1}, [0] * 8),
        ("gemma3", {"attention__sliding_window_pattern": 0}, [128] * 8),
        ("gemma4", {"attention__sliding_window_pattern": (True, False) * 4}, [128, 0] * 4),
        ("gpt-oss", {"attention__sliding_window_pattern": (1, 0, 0)}, [128] + [0] * 7),
    ],
)
def test_the_file_tells_which_layers_slide_and_else_the_architecture(
    architecture: str, metadata: dict[str, Any], expected: list[int]
) -> None:
    assert windows(model_of(architecture, **metadata)) == expected


def test_a_model_without_a_window_slides_only_where_llama_cpp_knows_one() -> None:
    assert windows(model_of("gemma3", window=0)) == [0] * 8
    assert windows(model_of("gemma2", window=0)) == [4096, 0] * 4


def test_layers_that_share_a_cache_or_have_no_attention_keep_nothing() -> None:
    pattern: dict[str, Any] = {"attention__sliding_window_pattern": (True,) * 7 + (False,)}
    assert len(layer_caches(model_of("gemma4", attention__shared_kv_layers=3, **pattern))) == 5
    assert len(layer_caches(replace(TINY, n_head_kv=(2, 0, 0, 0) * 2))) == 2
    assert len(layer_caches(replace(model_of("gemma3n"), n_layer=30, n_head_kv=(2,) * 30))) == 20


def test_layers_that_slide_may_have_heads_of_another_width_and_latent_attention_no_values() -> None:
    sliding = model_of(
        "gemma4",
        attention__sliding_window_pattern=(True, False) * 4,
        attention__key_length_swa=32,
        attention__value_length_swa=16,
    )
    assert [layer[:2] for layer in layer_caches(sliding)] == [(64, 32), (128, 128)] * 4
    latent = model_of("deepseek2", 0, attention__key_length_mla=192)
    assert layer_caches(latent)[0][:2] == (128, 0)


def test_bytes_follow_types_sequences_and_padded_contexts() -> None:
    spec = PoolSpec(parallel=3, n_ctx=300, type_k="q8_0", type_v="f32")
    assert bytes_per_token(TINY, spec) == 8 * (128 * 34 // 32 + 128 * 4)
    assert cache_bytes(TINY, spec) == 3 * 512 * bytes_per_token(TINY, spec)
    sliding = model_of("gemma3", window=100)
    spec = PoolSpec(parallel=2, n_ctx=4096, n_ubatch=64)
    assert cache_bytes(sliding, spec) == 2 * 4096 * 8 * 512
    assert cache_bytes(sliding, spec, is_windowed=True) == 2 * 512 * (1 * 4096 + 7 * 256)
