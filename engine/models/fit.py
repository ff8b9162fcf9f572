"""Memory fit of a model on this machine, over context lengths and numbers of sequences, before anything is loaded."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import psutil

from engine.errors import ConfigError
from engine.machine.memory import available_memory, memory_limit
from engine.models.gguf import ModelFile
from engine.models.kv_cache import CELLS, bytes_per_token, layer_caches
from engine.models.memory import estimate
from engine.models.planned import planned_model
from engine.models.shapes import Shape
from engine.specs import MAX_SEQUENCES, PoolSpec
from engine.units import counted, quantity

SEQUENCES = (1, 2, 4, 8, 16, 32, 64)
SHORTEST, LONGEST = 512, 1 << 20
"""Range of the table's context lengths, in tokens; limited further by the context that the model was trained on."""


class MachineMemory(NamedTuple):
    """Memory of the machine, in bytes. limit: the control group's, None where it is not below the total.

    available: what can be allocated now without swapping.
    """

    total: int
    limit: int | None
    available: int


@dataclass(frozen=True)
class FitRow:
    """Memory of a pool, in bytes: one column of the stacked chart, whose parts are weights, kv, buffers and process.

    n_ctx: tokens of one sequence; sequences: of the whole pool; kv_windowed: kv if layers with a sliding window stored
    only the window; buffers: of the graph and of rows of logits.
    """

    n_ctx: int
    sequences: int
    instances: int
    weights: int
    kv: int
    kv_windowed: int
    buffers: int
    process: int
    total: int
    fits: bool


def machine_memory() -> MachineMemory:
    """Return the memory of this machine, and what of it this process may use."""
    total, limit = psutil.virtual_memory().total, memory_limit()
    return MachineMemory(total, limit if limit is not None and limit < total else None, available_memory())


def contexts_for(model: ModelFile) -> list[int]:
    """Return context lengths in powers of two, up to the one the model was trained on."""
    most = min(model.n_ctx_train, LONGEST)
    found = [1 << power for power in range(SHORTEST.bit_length() - 1, LONGEST.bit_length()) if 1 << power < most]
    return [*found, most]


def grid(
    model: ModelFile,
    contexts: Iterable[int] = (),
    sequences: Sequence[int] = SEQUENCES,
    spec: PoolSpec | None = None,
) -> list[FitRow]:
    """Return a row for each number of sequences and each context length in tokens (default: those of contexts_for).

    All else is as in `spec`, except for more instances where one would have more sequences than llama.cpp allows.
    Raises ConfigError for numbers out of range.
    """
    lengths = list(contexts) or contexts_for(model)
    return [fit_row(model, n_ctx, count, spec) for count in sequences for n_ctx in lengths]


def fit_row(model: ModelFile, n_ctx: int, sequences: int, spec: PoolSpec | None = None) -> FitRow:
    """Return one row of the grid; raises ConfigError for numbers out of range."""
    chosen = _spec(n_ctx, sequences, spec or PoolSpec())
    needed = estimate(model, chosen)
    return FitRow(
        n_ctx=n_ctx,
        sequences=sequences,
        instances=chosen.instances,
        weights=needed.weights,
        kv=chosen.instances * needed.kv,
        kv_windowed=chosen.instances * needed.kv_windowed,
        buffers=chosen.instances * (needed.compute + needed.output),
        process=chosen.instances * needed.process,
        total=needed.total,
        fits=needed.fits,
    )


def _spec(n_ctx: int, sequences: int, spec: PoolSpec) -> PoolSpec:
    if sequences < 1:
        raise ConfigError(f"sequences = {sequences:,}: must be a whole number from 1")
    instances = max(min(spec.instances, sequences), -(-sequences // MAX_SEQUENCES))
    return replace(spec, n_ctx=n_ctx, instances=instances, parallel=-(-sequences // instances))


def longest_context(model: ModelFile, sequences: int = 1, spec: PoolSpec | None = None) -> int:
    """Return the longest context, in tokens, that fits now with `sequences`; at most the one the model was trained on.

    A multiple of 256, or the trained length; 0 where nothing fits. Raises ConfigError as grid does.
    """
    most = min(model.n_ctx_train, LONGEST)

    def fits(steps: int) -> bool:
        return fit_row(model, min(steps * CELLS, most), sequences, spec).fits

    low, high = 0, -(-most // CELLS)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return min(low * CELLS, most)


def cache_arithmetic(model: ModelFile, row: FitRow, spec: PoolSpec | None = None) -> str:
    """Return the arithmetic of a row's KV cache in words, with its ratio to the weights where that is at least 1."""
    chosen = spec or PoolSpec()
    each = bytes_per_token(model, chosen)
    caches = layer_caches(model)
    parts = f"{counted(len(caches), 'layer')}"
    widths = {(layer.keys, layer.values) for layer in caches}
    heads = {number for number in model.n_head_kv if number}
    if len(widths) == 1 and len(heads) == 1 and model.head_k == model.head_v:
        parts += f" × {counted(heads.pop(), 'head')} × {model.head_k:,} numbers"
    kinds = chosen.type_k if chosen.type_k == chosen.type_v else f"{chosen.type_k} and {chosen.type_v}"
    text = (
        f"{parts}, keys and values in {kinds}: {quantity(each, 'B')} per token; × "
        f"{counted(row.sequences, 'sequence')} × {row.n_ctx:,} tokens = {quantity(row.kv, 'B')}"
    )
    times = row.kv / row.weights if row.weights else math.nan
    return f"{text}, {times:,.1f} times the weights of {quantity(row.weights, 'B')}" if times >= 1 else text


class Example(NamedTuple):
    """Example of a model without a file, with one row, and the explanation of the row."""

    model: ModelFile
    row: FitRow
    says: str


def notes_example() -> Example:
    """Return the notes' example: 540 billion parameters, 512 sequences of 2,048 tokens, cache three times the weights.

    The arithmetic of the notes: 118 layers, 48 heads of 128 numbers with keys and values of their own, all in f16.
    """
    shape = Shape(
        architecture="llama", n_vocab=256_000, n_ctx_train=2048, is_tied=True,
        n_embd=18_432, n_layer=118, n_head=48, n_head_kv=48, n_head_width=128, n_ff=73_728,
    )  # fmt: skip
    model = planned_model("540 billion parameters", shape, "F16")
    spec = PoolSpec(share_weights=True)
    row = fit_row(model, 2048, 512, spec)
    says = (
        f"{cache_arithmetic(model, row, spec)}. All sequences share the weights, but each adds to the KV cache: in a "
        "large batch, the cache takes most of the memory"
    )
    return Example(model, row, says)
