"""One row of llama-bench: its fields, their names in older versions, and recomputation of its spread."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from engine.errors import ConfigError

Row = dict[str, Any]
LONGEST_TEXT = 4096

FIELDS: dict[str, type] = {
    "build_commit": str,
    "build_number": int,
    "cpu_info": str,
    "gpu_info": str,
    "backends": str,
    "model_filename": str,
    "model_type": str,
    "model_size": int,
    "model_n_params": int,
    "n_batch": int,
    "n_ubatch": int,
    "n_threads": int,
    "cpu_mask": str,
    "cpu_strict": bool,
    "poll": int,
    "type_k": str,
    "type_v": str,
    "n_gpu_layers": int,
    "n_cpu_moe": int,
    "split_mode": str,
    "main_gpu": int,
    "no_kv_offload": bool,
    "flash_attn": int,
    "devices": str,
    "tensor_split": str,
    "tensor_buft_overrides": str,
    "load_mode": str,
    "lazy_mode": str,
    "embeddings": bool,
    "no_op_offload": int,
    "no_host": bool,
    "repack": bool,
    "fit_target": int,
    "fit_min_ctx": int,
    "n_prompt": int,
    "n_gen": int,
    "n_depth": int,
    "test_time": str,
    "avg_ns": int,
    "stddev_ns": int,
    "avg_ts": float,
    "stddev_ts": float,
}
"""The 42 fields of a row in the order of llama-bench (test::get_fields); JSON and JSONL have samples_ns and samples_ts
as well."""

SAMPLES = ("samples_ns", "samples_ts")

DEFAULTS: Mapping[str, Any] = {
    **{name: kind() for name, kind in FIELDS.items()},
    "backends": "CPU",
    "n_batch": 2048,
    "n_ubatch": 512,
    "cpu_mask": "0x0",
    "poll": 50,
    "type_k": "f16",
    "type_v": "f16",
    "n_gpu_layers": -1,
    "split_mode": "layer",
    "flash_attn": -1,
    "devices": "auto",
    "tensor_split": "0.00",
    "tensor_buft_overrides": "none",
    "load_mode": "auto",
    "lazy_mode": "auto",
    "repack": True,
}
"""Value of a field that the row's version of llama-bench did not have, or that was not set."""

_BACKENDS = {"cuda": "CUDA", "vulkan": "Vulkan", "kompute": "Kompute", "metal": "Metal", "sycl": "SYCL", "rpc": "RPC"}


def checked_row(where: str, given: Mapping[str, Any]) -> Row:
    """Return the row in the types and names of the current version; missing fields get their defaults.

    Raises ConfigError with `where` and the reason for a row without a test or without a speed, and for an invalid
    value.
    """
    given = _renamed(given)
    row: Row = {name: _as(kind, given.get(name, DEFAULTS[name]), where, name) for name, kind in FIELDS.items()}
    if min(row["n_prompt"], row["n_gen"], row["n_depth"]) < 0 or not row["n_prompt"] + row["n_gen"]:
        raise ConfigError(f"{where}: n_prompt, n_gen and n_depth do not describe a test")
    nanoseconds = given.get("samples_ns")
    if nanoseconds:
        if not isinstance(nanoseconds, list) or not all(_is_time(value) for value in nanoseconds):
            raise ConfigError(f"{where}: samples_ns is not a list of nanoseconds")
        return with_samples(row, [int(value) for value in nanoseconds])
    if not row["avg_ts"] > 0:
        raise ConfigError(f"{where}: has neither samples_ns nor a speed in avg_ts")
    return row


def with_samples(row: Mapping[str, Any], nanoseconds: list[int]) -> Row:
    """Return the row with these samples, and averages and spreads computed from them.

    llama-bench's own stddev_ns is wrong for long samples: the squares of nanoseconds overflow 64 bits.
    """
    rates = [1e9 * (row["n_prompt"] + row["n_gen"]) / each for each in nanoseconds]
    (avg_ns, stddev_ns), (avg_ts, stddev_ts) = _mean_and_spread(nanoseconds), _mean_and_spread(rates)
    spread = {"avg_ns": int(avg_ns), "stddev_ns": int(stddev_ns), "avg_ts": avg_ts, "stddev_ts": stddev_ts}
    return {**row, **spread, "samples_ns": nanoseconds, "samples_ts": rates}


def _mean_and_spread(values: list[int] | list[float]) -> tuple[float, float]:
    """Return mean and standard deviation with n - 1; 0 for a single value, as in llama-bench."""
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0


def _is_time(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 1 <= value < 1e18


def _renamed(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row with fields of older versions under their current names."""
    row = dict(given)
    if "load_mode" not in row and "use_mmap" in row:
        is_direct = _is_set(row.get("use_direct_io"))
        row["load_mode"] = "dio" if is_direct else "mmap" if _is_set(row["use_mmap"]) else "none"
    if "type_k" not in row and "f16_kv" in row:
        row["type_k"] = row["type_v"] = "f16" if _is_set(row["f16_kv"]) else "f32"
    if "backends" not in row:
        named = [label for name, label in _BACKENDS.items() if _is_set(row.get(name))]
        is_blas = _is_set(row.get("blas")) and not _is_set(row.get("gpu_blas"))
        row["backends"] = ",".join(named or (["BLAS"] if is_blas else ["CPU"]))
    if _is_set(row.get("flash_attn")) and not _is_number(row["flash_attn"]):
        row["flash_attn"] = 1
    return row


def _is_set(value: Any) -> bool:
    return str(value).strip().lower() in ("1", "true", "yes", "on")


def _is_number(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and value.strip().lstrip("-").isdigit())


_WORDS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    int: ("a whole number", lambda value: _whole(value)),
    float: ("a number", lambda value: float(value)),
    bool: ("true or false", lambda value: {"0": False, "1": True, "false": False, "true": True}[str(value).lower()]),
    str: ("text", lambda value: value),
}


def _whole(value: Any) -> int:
    if int(value) != float(value):
        raise ValueError
    return int(value)


def _as(kind: type, value: Any, where: str, name: str) -> Any:
    words, convert = _WORDS[kind]
    try:
        if not isinstance(value, int | float | str) or (kind is str and not isinstance(value, str)):
            raise ValueError
        found = convert(value)
        if len(str(value)) > LONGEST_TEXT or (kind is not str and not -1e18 < found < 1e18):
            raise ValueError
    except (ValueError, KeyError, OverflowError) as error:
        shown = repr(value)[:80]
        raise ConfigError(f"{where}: {name} = {shown}: must be {words}") from error
    return found
