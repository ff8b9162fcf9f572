"""What one sequence keeps of each token: the width of every layer's keys and values, and how far back a layer looks.

Which layers have a sliding window, and which share the cache of an earlier one, is not in every file: where a key is
missing, llama.cpp's loader of that architecture decides (src/models/*.cpp, load_arch_hparams), and so does this module.
"""

from collections.abc import Iterator
from typing import NamedTuple

from engine.models.ggml import TYPES_BY_NAME
from engine.models.gguf import ModelFile
from engine.specs import PoolSpec

_FLOAT = 4
CELLS = 256
"""llama.cpp rounds the cells of a cache up to a multiple of this."""


class _Loader(NamedTuple):
    """What llama.cpp's loader knows of an architecture's windows.

    period: the last layer of each `period` sees the whole context, the first where is_dense_first; 0: only a list in
    the file tells. window: tokens where the file does not say.
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
"""Architectures with windows. llama.cpp does not use the window of phi3; of others not named here none is counted."""

_LAYERS_WITH_CACHE = {"gemma3n": 20}


class LayerCache(NamedTuple):
    """Numbers that one token adds to a layer's cache, and the tokens back that the layer sees; 0 for all."""

    keys: int
    values: int
    window: int


def layer_caches(model: ModelFile) -> list[LayerCache]:
    """Every layer with a cache of its own; a layer without attention has none."""
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
        value = 0  # multi-head latent attention finds its values among the keys
    return LayerCache(heads * key, heads * value, window)


def _windows(model: ModelFile) -> Iterator[int]:
    """The window of each layer, 0 where it sees everything."""
    loader = _LOADERS.get(model.architecture)
    window = loader and (model.sliding_window or loader.window)
    if not loader or not window:
        yield from [0] * model.n_layer
        return
    told = model.metadata.get(f"{model.architecture}.attention.sliding_window_pattern", loader.period)
    for layer in range(model.n_layer):
        if isinstance(told, tuple):
            has_window = layer < len(told) and bool(told[layer])
        else:
            period = told if isinstance(told, int) and told > 0 else model.n_layer + 1
            has_window = layer % period != (0 if loader.is_dense_first else period - 1)
        yield window if has_window else 0


def bytes_per_token(model: ModelFile, spec: PoolSpec) -> int:
    """Bytes of one token of a sequence: a row of keys and one of values in each layer."""
    return sum(_row_bytes(layer, spec) for layer in layer_caches(model))


def cache_bytes(model: ModelFile, spec: PoolSpec, *, is_windowed: bool = False) -> int:
    """Bytes of keys and values of all sequences of one instance, to the byte what llama.cpp allocates.

    is_windowed: layers with a window keep no more than it and one physical batch, as llama.cpp's own programs do unless
    told --swa-full (llama_kv_cache_iswa). The pool keeps everything, so that a prefix can be reused.
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
    """Convolution and state-space memory of the layers without attention, in F32 for each sequence."""
    num_layers = sum(heads == 0 for heads in model.n_head_kv)
    inner, state = model.whole("ssm.inner_size"), model.whole("ssm.state_size")
    convolved = (model.whole("ssm.conv_kernel", 1) - 1) * (inner + 2 * model.whole("ssm.group_count") * state)
    return num_layers * (convolved + inner * state) * _FLOAT * spec.parallel
