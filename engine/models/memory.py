"""Memory estimate of a model in a pool, calculated from its header before anything is loaded.

The KV cache is exactly what llama.cpp allocates; the output buffer is the size it grows to while prompts are scored.
The compute buffer follows the peak of the graph: the feed-forward net, attention, or the logits. Over 60 contexts of
llama, qwen2, phi2 and gemma3 models it was between 12 % below (gemma3 in contexts of 256 tokens, where the room that
llama.cpp uses again has gaps) and 20 % above the figure that llama.cpp printed, most within 1 %; the sum was within 3 %
of the PSS of workers with models of 0.5 to 2.8 billion parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import MemoryRefused
from engine.machine.memory import available_memory
from engine.models.folder_specs import KV_TYPE, folder_dtype, is_by_transformers
from engine.models.ggml import TYPES_BY_NAME
from engine.models.gguf import ModelFile
from engine.models.header import TensorInfo
from engine.models.kv_cache import LayerCache, cache_bytes, layer_caches, state_bytes
from engine.models.kv_cache import bytes_per_token as kv_bytes_per_token
from engine.models.repacking import LOOKED_UP, copied_bytes
from engine.specs import PoolSpec
from engine.units import quantity

__all__ = ["MemoryEstimate", "check_fits", "estimate", "kv_bytes_per_token"]

PROCESS_BYTES = 42 << 20
"""Interpreter, libraries and work buffers of one worker with a small vocabulary, measured."""
TORCH_BYTES = 380 << 20
"""The same with PyTorch and transformers, measured."""
TOKEN_BYTES = 250
"""Additional bytes per token of the vocabulary: llama.cpp's tables, the worker's own, buffers over all logits."""
MERGE_BYTES = 150
"""Additional bytes per token for the merges of a byte-pair tokenizer, of which there are about as many as tokens."""

_FLOAT, _HALF = 4, 2


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory estimate of a pool, in bytes of the machine's memory.

    mapped: weights that all instances use in the pages of the file; copied: private copies of weights per instance.
    idle: pages of the file that were copied from and stay mapped; the system reclaims them when memory is short, so
    they do not count as needed. kv: keys and values per instance (and the state of recurrent layers); kv_windowed: the
    same if layers with a sliding window stored only the window; compute: the graph's buffer; output: rows of logits.
    """

    instances: int
    mapped: int
    copied: int
    idle: int
    kv: int
    kv_windowed: int
    compute: int
    output: int
    process: int
    available: int
    kv_note: str

    @property
    def weights(self) -> int:
        """Bytes of weights that the whole pool computes with."""
        return self.mapped + self.instances * self.copied

    @property
    def each(self) -> int:
        """Bytes of one instance besides the weights."""
        return self.kv + self.compute + self.output + self.process

    @property
    def total(self) -> int:
        """Bytes of all instances with their weights."""
        return self.weights + self.instances * self.each

    @property
    def resident(self) -> int:
        """Bytes that the workers hold while memory is plentiful: the sum of their PSS."""
        return self.total + self.idle

    @property
    def fits(self) -> bool:
        """True when all of it is available."""
        return self.total <= self.available

    @property
    def arithmetic(self) -> str:
        """The sum, in words."""
        times = f"{self.instances} × " if self.instances > 1 else ""
        shared = " shared" if self.instances > 1 else ""
        parts = [f"{_bytes(self.mapped)}{shared}"] if self.mapped or not self.copied else []
        parts += [f"{times}{_bytes(self.copied)} private"] if self.copied else []
        return (
            f"weights {' and '.join(parts)} + KV cache {times}{_bytes(self.kv)} ({self.kv_note}) + buffers {times}"
            f"{_bytes(self.compute + self.output)} + process {times}{_bytes(self.process)} = {_bytes(self.total)}; "
            f"available: {_bytes(self.available)}"
        )


def estimate(model: ModelFile, spec: PoolSpec, available: int | None = None) -> MemoryEstimate:
    """Estimate the memory of `model` in a pool of `spec`. available: bytes; None: read now, on this machine.

    Layers offloaded to a GPU are excluded: they are in its memory. A sliding window saves nothing, since the cache has
    its full length for every layer so that a prefix can be reused.
    """
    available = available_memory() if available is None else available
    if is_by_transformers(model, spec):
        return _of_folder(model, spec, available)
    on_host = _host_share(model, spec)
    mapped, copied, idle = (int(size * on_host) for size in _weights(model, spec))
    state = state_bytes(model, spec)
    return MemoryEstimate(
        instances=spec.instances,
        mapped=mapped,
        copied=copied,
        idle=idle,
        kv=int((cache_bytes(model, spec) + state) * on_host),
        kv_windowed=int((cache_bytes(model, spec, is_windowed=True) + state) * on_host),
        compute=_compute_bytes(model, spec),
        output=spec.most_rows(model.n_vocab) * model.n_vocab * _FLOAT,
        process=_process_bytes(model),
        available=available,
        kv_note=f"{spec.parallel:,} × {spec.padded_n_ctx:,} tokens, {model.n_layer} layers, "
        f"{spec.type_k} keys, {spec.type_v} values",
    )


def _of_folder(model: ModelFile, spec: PoolSpec, available: int) -> MemoryEstimate:
    """Estimate the memory of a model in transformers: each instance has weights, keys and values of its own, in one
    type."""
    dtype = folder_dtype(model, spec)
    kind = TYPES_BY_NAME[KV_TYPE[dtype].upper()]
    tokens = spec.resolved_n_ubatch
    kv = sum(layer.keys + layer.values for layer in layer_caches(model)) * spec.n_ctx * spec.parallel
    hidden = tokens * (3 * model.n_ff + 4 * model.n_embd) * kind.num_bytes
    scores = tokens * spec.n_ctx * (model.n_head + 1) * kind.num_bytes
    return MemoryEstimate(
        instances=spec.instances,
        mapped=0,
        copied=kind.size_of(model.num_parameters),
        idle=0,
        kv=kind.size_of(kv),
        kv_windowed=kind.size_of(kv),
        compute=hidden + scores,
        output=spec.most_rows(model.n_vocab) * model.n_vocab * _FLOAT,
        process=TORCH_BYTES + model.n_vocab * (TOKEN_BYTES + MERGE_BYTES),
        available=available,
        kv_note=f"{spec.parallel:,} × {spec.n_ctx:,} tokens, {model.n_layer} layers, {dtype}",
    )


def check_fits(model: ModelFile, spec: PoolSpec, needed: MemoryEstimate | None = None) -> MemoryEstimate:
    """Return the estimate, by default that of a pool; raises MemoryRefused with the arithmetic when it exceeds the
    available memory."""
    needed = needed or estimate(model, spec)
    if not needed.fits:
        raise MemoryRefused(
            f"{model.path.name} needs more memory than is available, so it was not loaded: {needed.arithmetic}. "
            "Use fewer instances, fewer or shorter sequences, shared weights, or q8_0 keys and values"
        )
    return needed


def copied_weights(model: ModelFile) -> int:
    """Return the bytes of weights that each instance repacks for this processor, without share_weights."""
    return sum(_copies(model).values())


def _host_share(model: ModelFile, spec: PoolSpec) -> float:
    """Return the share of the layers in host memory."""
    if spec.n_gpu_layers < 0:
        return 0.0
    return max(0.0, 1 - spec.n_gpu_layers / (model.n_layer + 1))


def _weights(model: ModelFile, spec: PoolSpec) -> tuple[int, int, int]:
    """Return the bytes used in the file's pages, copied into each instance, and mapped without being used."""
    if spec.share_weights:
        return (0, model.weights_bytes, 0) if spec.load == "none" else (model.weights_bytes, 0, 0)
    copies = _copies(model)
    copied = sum(copies.values())
    idle = sum(tensor.num_bytes for tensor, size in copies.items() if size and tensor.name not in LOOKED_UP)
    used = model.weights_bytes - idle
    match spec.load:
        case "none":
            return 0, used + copied, 0
        case "mlock":
            return used + idle, copied, 0
    return used, copied, idle


def _copies(model: ModelFile) -> dict[TensorInfo, int]:
    """Return for each tensor the bytes of its repacked copy."""
    is_tied = not any(tensor.name == "output.weight" for tensor in model.tensors)
    return {tensor: copied_bytes(tensor, is_tied=is_tied) for tensor in model.tensors}


def _process_bytes(model: ModelFile) -> int:
    has_merges = model.metadata.get("tokenizer.ggml.model") == "gpt2"
    return PROCESS_BYTES + model.n_vocab * (TOKEN_BYTES + has_merges * MERGE_BYTES)


def _compute_bytes(model: ModelFile, spec: PoolSpec) -> int:
    """Return the peak of the graph in bytes: the feed-forward net or attention with its masks, or the logits."""
    caches = layer_caches(model)
    tokens = min(spec.resolved_n_ubatch, spec.resolved_n_batch)
    width, queries = model.n_embd, model.n_head * model.head_k
    rows = min(tokens, spec.most_rows(model.n_vocab))
    feed_forward = (_feed_forward_width(model) + 3 * width + queries) * tokens * _FLOAT
    attention = _attention_bytes(model, spec, caches, tokens)
    masks = tokens * spec.padded_n_ctx * (_FLOAT if spec.flash_attn is False else _HALF)
    if any(layer.window for layer in caches):
        masks *= 2
    logits = (rows * (model.n_vocab + width) + tokens * width) * _FLOAT
    return max(max(feed_forward, attention) + masks, logits)


def _attention_bytes(model: ModelFile, spec: PoolSpec, caches: Sequence[LayerCache], tokens: int) -> int:
    """Return the bytes of queries, keys and values of the widest layer.

    Plus all scores without flash attention; with it, F32 keys and values converted to F16.
    """
    keys, values = (max((layer[column] for layer in caches), default=0) for column in (0, 1))
    queries = model.n_head * model.head_k
    is_fused = any(tensor.name.endswith("attn_qkv.weight") for tensor in model.tensors)
    each = 2 * (model.n_embd + queries + keys + is_fused * values)
    if spec.flash_attn is False:
        return (each + queries + spec.padded_n_ctx * model.n_head) * tokens * _FLOAT
    made = keys * (spec.type_k == "f32") + values * (spec.type_v == "f32")
    return each * tokens * _FLOAT + made * spec.padded_n_ctx * spec.parallel * _HALF


def _feed_forward_width(model: ModelFile) -> int:
    """Return the feed-forward values alive at once for a token: a gated net has gate, up projection and product."""
    experts = model.whole("expert_feed_forward_length") * model.whole("expert_used_count")
    has_gate = any(
        ".ffn_gate" in tensor.name or (tensor.name.endswith("ffn_up.weight") and tensor.shape[1] > model.n_ff)
        for tensor in model.tensors
    )
    return max(model.n_ff, experts) * 3 if has_gate else model.n_ff + model.n_embd


def _bytes(num_bytes: int) -> str:
    return quantity(num_bytes, "B")
