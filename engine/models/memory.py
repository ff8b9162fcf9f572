"""How much memory a model will take in a pool, reckoned from its header before anything is loaded.

The KV cache is what llama.cpp allocates, to the byte; the output buffer what it grows to while prompts are scored. The
compute buffer follows the largest moment of the graph of a llama-like decoder: the feed-forward net, the logits, or
attention without flash attention. Over 28 contexts of llama and qwen2 models it lay between 0.4 % below and 12.5 %
above the figure that llama.cpp printed.
"""

from dataclasses import dataclass

from engine.errors import MemoryRefused
from engine.models.available import available_memory
from engine.models.ggml import TYPES_BY_NAME
from engine.models.gguf import ModelFile
from engine.specs import PoolSpec

SCORED_ROWS = 32
"""Prompt rows with logits that a decode may have beside one for each sequence, as engine.llama.context asks for."""

PROCESS_BYTES = 64 << 20
"""Interpreter, libraries and work buffers of one worker."""

_FLOAT = 4
_MIB = 1 << 20


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a pool will take in this machine's memory. `weights` is the whole pool's, the rest each instance's.

    kv: keys and values (and the state of recurrent layers); compute: the graph's buffer; output: rows of logits.
    """

    instances: int
    is_shared: bool
    weights: int
    kv: int
    compute: int
    output: int
    process: int
    available: int
    kv_note: str

    @property
    def each(self) -> int:
        """Bytes of one instance beside the weights."""
        return self.kv + self.compute + self.output + self.process

    @property
    def total(self) -> int:
        """Bytes of all instances with their weights."""
        return self.weights + self.instances * self.each

    @property
    def fits(self) -> bool:
        """True when all of it is available."""
        return self.total <= self.available

    @property
    def arithmetic(self) -> str:
        """The sum in words, in MiB."""
        times = f"{self.instances} x " if self.instances > 1 else ""
        weights = f"weights {_mib(self.weights)}"
        if self.instances > 1:
            weights += " shared" if self.is_shared else f" ({times}{_mib(self.weights // self.instances)})"
        return (
            f"{weights} + KV cache {times}{_mib(self.kv)} ({self.kv_note}) + buffers {times}"
            f"{_mib(self.compute + self.output)} + process {times}{_mib(self.process)} = {_mib(self.total)}; "
            f"available: {_mib(self.available)}"
        )


def estimate(model: ModelFile, spec: PoolSpec) -> MemoryEstimate:
    """Reckon what `model` takes in a pool of `spec`, and read what this machine has available.

    Layers given to a GPU are left out: they lie in its memory. A sliding window saves nothing here, since the
    cache keeps its full length for every layer so that a prefix can be reused.
    """
    is_shared = spec.share_weights and spec.load != "none"
    on_host = _host_share(model, spec)
    copies = 1 if is_shared else spec.instances
    return MemoryEstimate(
        instances=spec.instances,
        is_shared=is_shared,
        weights=int(model.weights_bytes * on_host) * copies,
        kv=int((_kv_bytes(model, spec) + _state_bytes(model, spec)) * on_host),
        compute=_compute_bytes(model, spec),
        output=_num_outputs(spec) * model.n_vocab * _FLOAT,
        process=PROCESS_BYTES,
        available=available_memory(),
        kv_note=f"{spec.parallel:,} x {spec.padded_n_ctx:,} tokens, {model.n_layer} layers, "
        f"{spec.type_k} keys, {spec.type_v} values",
    )


def check_fits(model: ModelFile, spec: PoolSpec) -> MemoryEstimate:
    """The estimate; raises MemoryRefused with the arithmetic when it is more than this machine has available."""
    needed = estimate(model, spec)
    if not needed.fits:
        raise MemoryRefused(
            f"{model.path.name} needs more memory than there is, so it was not loaded: {needed.arithmetic}. "
            "Fewer instances, fewer or shorter sequences, shared weights or q8_0 keys and values need less"
        )
    return needed


def _host_share(model: ModelFile, spec: PoolSpec) -> float:
    """Part of the layers that this machine's own memory holds."""
    if spec.n_gpu_layers < 0:
        return 0.0
    return max(0.0, 1 - spec.n_gpu_layers / (model.n_layer + 1))


def _num_outputs(spec: PoolSpec) -> int:
    """Rows of logits that one decode may have."""
    return min(spec.resolved_n_batch, spec.parallel + SCORED_ROWS)


def kv_bytes_per_token(model: ModelFile, spec: PoolSpec) -> int:
    """Bytes of one token of a sequence in the KV cache: a key and a value row in each layer."""
    row = 0
    for heads in model.n_head_kv:
        for width, kind in ((heads * model.head_k, spec.type_k), (heads * model.head_v, spec.type_v)):
            row += TYPES_BY_NAME[kind.upper()].size_of(width)
    return row


def _kv_bytes(model: ModelFile, spec: PoolSpec) -> int:
    """Every token of the padded context of every sequence."""
    return kv_bytes_per_token(model, spec) * spec.padded_n_ctx * spec.parallel


def _state_bytes(model: ModelFile, spec: PoolSpec) -> int:
    """Convolution and state-space memory of the layers without attention, in F32 for each sequence."""
    num_layers = sum(heads == 0 for heads in model.n_head_kv)
    inner, state = model.whole("ssm.inner_size"), model.whole("ssm.state_size")
    convolved = (model.whole("ssm.conv_kernel", 1) - 1) * (inner + 2 * model.whole("ssm.group_count") * state)
    return num_layers * (convolved + inner * state) * _FLOAT * spec.parallel


def _compute_bytes(model: ModelFile, spec: PoolSpec) -> int:
    """The largest of three moments of the graph, in floats for each token of a physical batch, and the mask."""
    tokens = min(spec.resolved_n_ubatch, spec.resolved_n_batch)
    width = max(model.n_embd, model.n_head * model.head_k)
    experts = model.whole("expert_feed_forward_length") * model.whole("expert_used_count")
    feed_forward = (3 * max(model.n_ff, experts) + 4 * width) * tokens
    logits = min(tokens, _num_outputs(spec)) * model.n_vocab + 4 * width * tokens
    largest = max(feed_forward, logits)
    mask = tokens * spec.padded_n_ctx
    if spec.flash_attn is False:
        return (max(largest, mask * model.n_head + 6 * width * tokens) + mask) * _FLOAT
    return largest * _FLOAT + mask * _FLOAT // 2


def _mib(size: int) -> str:
    return f"{size / _MIB:,.0f} MiB"
