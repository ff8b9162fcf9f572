"""The loaded llama.cpp library: quiet logging, pointers as numpy arrays, NULL turned into errors."""

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
    """Make llama.cpp ready in this process; its warnings and errors go to standard error."""
    llama.llama_log_set(_log, ctypes.c_void_p(0))
    llama.llama_backend_init()


def has_one_openmp() -> bool:
    """Whether llama.cpp computes with OpenMP's threads and no second runtime of OpenMP is loaded, so that whoever asks
    for threads of OpenMP gets those of llama.cpp. False where the system does not tell."""
    if b"OPENMP = 1" not in llama.llama_print_system_info():
        return False
    try:
        mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    except OSError:
        return False
    return len({file for file in mapped if _OPENMP.search(file)}) == 1


def view(address: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A numpy array over memory that llama.cpp owns; valid only as long as llama.cpp leaves it there."""
    kind = np.dtype(dtype)
    memory = memoryview((ctypes.c_byte * (math.prod(shape) * kind.itemsize)).from_address(address))
    return np.frombuffer(memory, kind).reshape(shape)


def quick(function: Any, result: Any, *arguments: Any) -> Any:
    """A function of llama.cpp that returns at once, called without letting go of Python's lock meanwhile."""
    return ctypes.PYFUNCTYPE(result, *arguments)(ctypes.cast(function, ctypes.c_void_p).value or 0)


def not_null(sampler: Any, name: str, reason: str) -> Any:
    """The sampler itself; raises ConfigError where llama.cpp returned NULL, which it would crash on later."""
    if not sampler:
        raise ConfigError(f"{name}: {reason}")
    return sampler
