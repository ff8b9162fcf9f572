"""Weight repacking: which matrices llama.cpp copies into a layout faster on this processor, and the copies' sizes.

With AMX, tiles are tried first (ggml-cpu/amx); matrices that tiles do not support, and all matrices on other
processors, are repacked for AVX2, AVX-512 or NEON where supported (ggml-cpu/repack.cpp).
"""

import importlib.util
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

from engine.models.header import TensorInfo

LOOKED_UP = ("token_embd.weight", "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight")
"""Tensors used only by row lookup, never in a product: these are not repacked."""

_ROWS_REPACKED = 8
_REPACKED_TYPES = {
    "x86_64": {"Q4_0", "Q4_K", "Q2_K", "IQ4_NL", "MXFP4"},
    "aarch64": {"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4"},
}
_ROWS_OF_TILES = 32
_BESIDE_TILES = {"Q4_0": 0, "Q4_1": 0, "Q8_0": 4, "Q4_K": 4, "Q5_K": 4, "Q6_K": 0, "IQ4_XS": 2, "F16": 0}
"""Types that tiles support, with the extra bytes per block in the tile layout."""


def copied_bytes(tensor: TensorInfo, *, is_tied: bool) -> int:
    """Return the bytes of a matrix's copy, 0 where it is used in place; is_tied: the embedding is the output matrix."""
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
    """Return True where llama.cpp uses AMX int8 tiles: the processor has them, and llama.cpp was compiled for them."""
    folder = llama_cpp_libraries()
    if folder is None:
        return False
    with suppress(OSError):
        flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
        return "amx_int8" in flags.split() and b"ggml_backend_amx_mul_mat" in (folder / "libggml-cpu.so").read_bytes()
    return False


def llama_cpp_libraries() -> Path | None:
    """Return the folder of the compiled llama.cpp in the Python package; None where it is not installed."""
    package = importlib.util.find_spec("llama_cpp")
    return None if package is None or package.origin is None else Path(package.origin).parent / "lib"


def _fits_tiles(tensor: TensorInfo) -> bool:
    """Return whether tiles support a tensor; the experts of a mixture have three dimensions, which tiles do not."""
    return tensor.type.name in _BESIDE_TILES and len(tensor.shape) == 2 and tensor.shape[1] % _ROWS_OF_TILES == 0
