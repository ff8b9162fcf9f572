"""KV cache size: the widths of every layer's keys and values per token, and each layer's attention window.

Not every file specifies which layers have a sliding window or share the cache of an earlier layer: where a key is
missing, llama.cpp's loader of that architecture decides (src/models/*.cpp, load_arch_hparams), and so does this module.
"""

from collections.abc import Iterator
from typing import NamedTuple

from engine.models.ggml import TYPES_BY_NAME
from engine.models.gguf import ModelFile
from engine.specs import PoolSpec

_FLOAT = 4
CELLS = 256
"""llama.cpp rounds the number of cells of a cache up to a multiple of this."""


class _Loader(NamedTuple):
    """Default windows of an architecture in llama.cpp's loader.

    period: the last layer of each `period` sees the whole context, the first where is_dense_first; 0: the pattern comes
    only from the file. window: default in tokens where the file has none.
    """

    period: int
    window: int = 0
    is_dense_first: bool = False


_LOADERS = {
    "cohere2": _Loader(4),
    "gemma2": _Loader(2, window=4096),
    "gemma3": _Loader(6),
    "gemma3n": _Loader(5),
    "gemma4": _Loader(0),
    "gpt-oss": _Loader(2),
    "olmo2": _Loader(4),
    "smallthinker": _Loader(4, is_dense_first=True),
}
"""Architectures with windows. llama.cpp does not use the window of phi3; windows of unlisted ones are not counted."""

_LAYERS_WITH_CACHE = {"gemma3n": 20}


class LayerCache(NamedTuple):
    """Cache of one layer: values that one token adds to keys and values, and the window in tokens (0: unlimited)."""

    keys: int
    values: int
    window: int


def layer_caches(model: ModelFile) -> list[LayerCache]:
    """Return the cache of every layer that has its own; a layer without attention has none."""
    num_layers = _LAYERS_WITH_CACHE.get(model.architecture, model.n_layer - model.whole("attention.shared_kv_layers"))
    return [
        _layer(model, heads, window)
        for heads, window in zip(model.n_head_kv[:num_layers], _windows(model), strict=False)
        if heads
    ]


def _layer(model: ModelFile, heads: int, window: int) -> LayerCache:
    key, value = model.head_k, model.head_v
    if window:
        key = model.whole("attention.key_length_swa", key)
        value = model.whole("attention.value_length_swa", value)
    if model.whole("attention.key_length_mla"):
        value = 0  # multi-head latent attention derives its values from the cached keys
    return LayerCache(heads * key, heads * value, window)


def _windows(model: ModelFile) -> Iterator[int]:
    """Yield the window of each layer, 0 where it attends to the whole context."""
    loader = _LOADERS.get(model.architecture)
    window = loader and (model.sliding_window or loader.window)
    if not loader or not window:
        yield from [0] * model.n_layer
        return
    pattern = model.metadata.get(f"{model.architecture}.attention.sliding_window_pattern", loader.period)
    for layer in range(model.n_layer):
        if isinstance(pattern, tuple):
            has_window = layer < len(pattern) and bool(pattern[layer])
        else:
            period = pattern if isinstance(pattern, int) and pattern > 0 else model.n_layer + 1
            has_window = layer % period != (0 if loader.is_dense_first else period - 1)
        yield window if has_window else 0


def bytes_per_token(model: ModelFile, spec: PoolSpec) -> int:
    """Return the cache bytes of one token of a sequence: a row of keys and one of values in each layer."""
    return sum(_row_bytes(layer, spec) for layer in layer_caches(model))


def cache_bytes(model: ModelFile, spec: PoolSpec, *, is_windowed: bool = False) -> int:
    """Return the bytes of keys and values of all sequences of one instance, exactly as llama.cpp allocates them.

    is_windowed: layers with a window store only the window and one physical batch, as llama.cpp's own programs do
    without --swa-full (llama_kv_cache_iswa). The pool stores the whole context, so that a prefix can be reused.
    """
    cells = 0
    for layer in layer_caches(model):
        length = spec.padded_n_ctx
        if is_windowed and layer.window:
            length = min(length, -(-(layer.window + spec.resolved_n_ubatch) // CELLS) * CELLS)
        cells += length * _row_bytes(layer, spec)
    return cells * spec.parallel


def _row_bytes(layer: LayerCache, spec: PoolSpec) -> int:
    return sum(
        TYPES_BY_NAME[kind.upper()].size_of(width)
        for width, kind in ((layer.keys, spec.type_k), (layer.values, spec.type_v))
    )


def state_bytes(model: ModelFile, spec: PoolSpec) -> int:
    """Return the bytes of convolution and state-space memory of layers without attention, in F32 for all sequences."""
    num_layers = sum(heads == 0 for heads in model.n_head_kv)
    inner, state = model.whole("ssm.inner_size"), model.whole("ssm.state_size")
    convolved = (model.whole("ssm.conv_kernel", 1) - 1) * (inner + 2 * model.whole("ssm.group_count") * state)
    return num_layers * (convolved + inner * state) * _FLOAT * spec.parallel
