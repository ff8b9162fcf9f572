"""Which matrices llama.cpp copies into an order that this processor multiplies faster, and what the copies take.

With AMX it asks for its tiles first (ggml-cpu/amx); what those do not have, and all of it elsewhere, is repacked for
AVX2, AVX-512 or NEON where there is a way (ggml-cpu/repack.cpp).
"""

import importlib.util
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

from engine.models.header import TensorInfo

LOOKED_UP = ("token_embd.weight", "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight")
"""Tensors of which rows are taken, never a product: these stay as they are."""

_ROWS_REPACKED = 8
_REPACKED_TYPES = {
    "x86_64": {"Q4_0", "Q4_K", "Q2_K", "IQ4_NL", "MXFP4"},
    "aarch64": {"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4"},
}
_ROWS_OF_TILES = 32
_BESIDE_TILES = {"Q4_0": 0, "Q4_1": 0, "Q8_0": 4, "Q4_K": 4, "Q5_K": 4, "Q6_K": 0, "IQ4_XS": 2, "F16": 0}
"""Bytes that a block of each type that tiles have takes beside its own."""


def copied_bytes(tensor: TensorInfo, *, is_tied: bool) -> int:
    """Bytes of the copy of a matrix, 0 where it is used as it lies in the file; is_tied: the first is also the last."""
    is_product = tensor.name not in LOOKED_UP or (is_tied and tensor.name == "token_embd.weight")
    if not is_product or len(tensor.shape) < 2:
        return 0
    if has_amx() and _fits_tiles(tensor):
        return tensor.num_bytes + tensor.num_values // tensor.type.block * _BESIDE_TILES[tensor.type.name]
    machine = "aarch64" if platform.machine() in ("aarch64", "arm64") else "x86_64"
    is_repacked = tensor.shape[1] % _ROWS_REPACKED == 0 and tensor.type.name in _REPACKED_TYPES[machine]
    return tensor.num_bytes if is_repacked else 0


@cache
def has_amx() -> bool:
    """True where llama.cpp multiplies tiles of integers: the processor has them, and it was compiled for them."""
    folder = llama_cpp_libraries()
    if folder is None:
        return False
    with suppress(OSError):
        flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
        return "amx_int8" in flags.split() and b"ggml_backend_amx_mul_mat" in (folder / "libggml-cpu.so").read_bytes()
    return False


def llama_cpp_libraries() -> Path | None:
    """The folder of the compiled llama.cpp that the Python package brings; None where it is not installed."""
    package = importlib.util.find_spec("llama_cpp")
    return None if package is None or package.origin is None else Path(package.origin).parent / "lib"


def _fits_tiles(tensor: TensorInfo) -> bool:
    """Experts of a mixture lie in three dimensions, which tiles do not have."""
    return tensor.type.name in _BESIDE_TILES and len(tensor.shape) == 2 and tensor.shape[1] % _ROWS_OF_TILES == 0
