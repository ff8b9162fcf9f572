"""Helpers for the loaded llama.cpp library: logging, numpy views of its memory, fast calls, errors for NULL."""

import ctypes
import math
import re
import sys
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from engine.errors import ConfigError

# GGML_TYPE_BF16 of ggml.h is not among the names that llama_cpp binds
GGML_TYPES = {"bf16": 30} | {
    name: getattr(llama, f"GGML_TYPE_{name.upper()}")
    for name in ("f32", "f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
}
LOAD_MODES = {
    "mmap": llama.LLAMA_LOAD_MODE_MMAP,
    "mlock": llama.LLAMA_LOAD_MODE_MMAP_MLOCK,
    "none": llama.LLAMA_LOAD_MODE_NONE,
}
_WARN, _ERROR = 3, 4
_OPENMP = re.compile(r"/lib(gomp|omp|iomp5)[-.][^/]*$")


@llama.llama_log_callback  # type: ignore[untyped-decorator]
def _log(level: int, text: bytes, _user_data: Any) -> None:
    if level in (_WARN, _ERROR):
        sys.stderr.write(text.decode("utf-8", "replace"))
        sys.stderr.flush()


def start_backend() -> None:
    """Initialise llama.cpp in this process; its warnings and errors go to standard error."""
    llama.llama_log_set(_log, ctypes.c_void_p(0))
    llama.llama_backend_init()


def has_one_openmp() -> bool:
    """Return whether llama.cpp uses OpenMP and only one OpenMP runtime is loaded, so that other OpenMP code shares
    llama.cpp's threads. False if the system does not report loaded libraries."""
    if b"OPENMP = 1" not in llama.llama_print_system_info():
        return False
    try:
        mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    except OSError:
        return False
    return len({file for file in mapped if _OPENMP.search(file)}) == 1


def view(address: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a numpy view of memory owned by llama.cpp; valid only as long as llama.cpp keeps it allocated."""
    kind = np.dtype(dtype)
    memory = memoryview((ctypes.c_byte * (math.prod(shape) * kind.itemsize)).from_address(address))
    return np.frombuffer(memory, kind).reshape(shape)


def quick(function: Any, result: Any, *arguments: Any) -> Any:
    """Wrap a fast llama.cpp function so that calls do not release the GIL."""
    return ctypes.PYFUNCTYPE(result, *arguments)(ctypes.cast(function, ctypes.c_void_p).value or 0)


def not_null(sampler: Any, name: str, reason: str) -> Any:
    """Return the sampler; raises ConfigError if llama.cpp returned NULL, on which it would crash later."""
    if not sampler:
        raise ConfigError(f"{name}: {reason}")
    return sampler
