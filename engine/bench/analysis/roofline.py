"""Roofline: how close a configuration comes to the limits of its machine, and what would speed it up."""

import math
from typing import NamedTuple

import numpy as np

from engine.bench.measurement.ceiling import ceiling_key
from engine.bench.planning.plan import Cell
from engine.machine.limits import Limits
from engine.models.experts import weights_read
from engine.models.gguf import ModelFile
from engine.models.memory import kv_bytes_per_token
from engine.units import digits, percent, quantity

NEAR_LIMIT = 0.8
"""Share of the bandwidth from which on memory counts as the bottleneck of decoding."""

_BEYOND = 1.1
_NAN = float("nan")


class Roofline(NamedTuple):
    """Shares of the machine's limits, NaN where unknown; `says` is the explanation for the user.

    mbu: memory bandwidth utilisation while decoding; prefill: share of the best prefill speed, at most 1;
    fits_in_cache: the weights fit in the last-level cache, so neither share is computed and no advice is given.
    """

    mbu: float
    prefill: float
    fits_in_cache: bool
    says: str


def shares(cell: Cell, model: ModelFile, limits: Limits, *, tokens_per_s: float, prefill_per_s: float) -> Roofline:
    """Return the shares of the limits that a configuration reaches.

    tokens_per_s: generated tokens per second in all; prefill_per_s: prompt tokens computed per second, NaN where
    unknown.

    MBU = bytes read per step × steps per second / bandwidth measured with all cores. In one step a process reads its
    weights once for all its sequences (see weights_read), and each sequence's keys and values up to the middle of its
    answer. The best prefill is that of engine.bench.measurement.ceiling, where `limits` has it.
    """
    if cell.pool.n_gpu_layers:
        return Roofline(_NAN, _NAN, False, "Layers run on a GPU; its limits are not measured.")
    copies = 1 if cell.pool.share_weights else cell.pool.instances
    if copies * model.weights_bytes <= limits.cache_bytes:
        return Roofline(
            _NAN,
            _NAN,
            True,
            f"The weights ({quantity(copies * model.weights_bytes, 'B')}) fit in the last-level cache "
            f"({quantity(limits.cache_bytes, 'B')}): memory does not limit this model, so its "
            "results do not apply to larger ones.",
        )
    read_per_s = _read_per_s(cell, model, tokens_per_s)
    best = _NAN
    if cell.workload.asked == "tokens":
        best = limits.prefill.get(ceiling_key(model, cell.workload.num_prompt), _NAN)
    prefill = float(np.minimum(prefill_per_s / best, 1.0))
    said = [_of_decoding(cell, limits, read_per_s), _of_prefill(cell, limits, prefill, best)]
    return Roofline(read_per_s / limits.bandwidth_bytes_per_s, prefill, False, " ".join(filter(None, said)))


def _read_per_s(cell: Cell, model: ModelFile, tokens_per_s: float) -> float:
    """Return the bytes of weights, keys and values that all processes together read per second of decoding."""
    pool, asked = cell.pool, cell.workload
    if asked.arrival == "poisson":
        return _NAN
    room = pool.instances * pool.parallel
    num_streams = min(asked.users, room) if asked.arrival == "users" else room
    each = num_streams / min(pool.instances, num_streams)
    context = asked.num_generated / 2 + (asked.depth + asked.num_prompt if asked.asked == "tokens" else 0)
    return tokens_per_s / each * (weights_read(model, each) + each * context * kv_bytes_per_token(model, pool))


def _of_decoding(cell: Cell, limits: Limits, read_per_s: float) -> str:
    if math.isnan(read_per_s):
        return ""
    most, share = limits.bandwidth_bytes_per_s, read_per_s / limits.bandwidth_bytes_per_s
    rates = f"{digits(read_per_s / 1e9)} of {digits(most / 1e9)} GB/s"
    reads = f"Decode reads {rates} of memory bandwidth ({percent(share)})"
    used = _num_threads(cell)
    if share > _BEYOND:
        return (
            f"{reads}: some of it comes from the caches, or the machine was busy when its limits were measured. "
            "More threads cannot help."
        )
    if share >= NEAR_LIMIT:
        return (
            f"{reads}: memory is the limit, so more threads cannot help; a smaller quantisation can, or, with many "
            "requests, more sequences."
        )
    if used < limits.num_cores:
        times = min(1 / share, limits.num_cores / used)
        return (
            f"{reads} with {used} of {limits.num_cores} cores: more threads can help, by up to {digits(times)} times."
        )
    return f"{reads} with all cores busy: compute is the limit, so more threads cannot help."


def _of_prefill(cell: Cell, limits: Limits, share: float, best: float) -> str:
    if math.isnan(share):
        return ""
    says = f"Prefill runs at {percent(share)} of the best for such layers on this machine ({quantity(best, 'tok/s')})"
    used = _num_threads(cell, is_prefill=True)
    return f"{says} with {used} of {limits.num_cores} cores." if used < limits.num_cores else f"{says}."


def _num_threads(cell: Cell, *, is_prefill: bool = False) -> int:
    threads = cell.pool.threads or 1
    return cell.pool.instances * (cell.pool.threads_batch or threads if is_prefill else threads)
