"""Binding of the compiled kernel.c: its structures and functions. `pip install` compiles it, via hatch_build.py."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from engine.errors import ConfigError

CANDIDATE = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
CHUNK = 8192  # tokens, as in kernel.c
PART = np.dtype([("total", "<f8"), ("weighted", "<f8"), ("highest", "<f8")])
LIBRARY = Path(__file__).with_name("_kernel.so")


class Look(ctypes.Structure):
    """Results for one row of logits: the `num_top` best tokens at `top`, and its figures if it `is_measured`.

    num_threads: threads that analyse the row; parts: one PART for each CHUNK tokens of the vocabulary.
    """

    _fields_ = (
        ("top", ctypes.c_void_p),
        ("heap", ctypes.c_void_p),
        ("p_by_id", ctypes.c_void_p),
        ("parts", ctypes.c_void_p),
        ("normaliser", ctypes.c_double),
        ("entropy", ctypes.c_double),
        ("num_vocab", ctypes.c_int32),
        ("num_top", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("is_measured", ctypes.c_bool),
    )


class LookAt(Protocol):
    """Signature of look_at: addresses of a Look and a float32 row, k, is_measured; returns False for a row that is not
    a distribution."""

    def __call__(self, seen: int, row: int, k: int, is_measured: bool, /) -> bool: ...


class WriteStep(Protocol):
    """Signature of write_step: addresses of a Look, its row, and Candidates or None; the step; the output address."""

    def __call__(
        self,
        seen: int,
        row: int,
        drawn: int | None,
        token: int,
        k: int,
        draw: float,
        elapsed_s: float,
        flags: int,
        out: int,
        /,
    ) -> None: ...


class ListAll(Protocol):
    """Signature of list_all: address of a row, its number of logits, address of Candidates."""

    def __call__(self, row: int, num_vocab: int, out: int, /) -> None: ...


class ListBest(Protocol):
    """Signature of list_best: address of a Look and how many of its best tokens to list; address and number of banned
    ids (int32); address of Candidates. Returns False if nothing is left."""

    def __call__(self, seen: int, num_best: int, banned: int, num_banned: int, out: int, /) -> bool: ...


class TokenOf(Protocol):
    """Signature of token_of: address of Candidates of which one was drawn."""

    def __call__(self, drawn: int, /) -> int: ...


class Kernel(NamedTuple):
    """The functions of kernel.c, which documents them."""

    look_at: LookAt
    write_step: WriteStep
    list_all: ListAll
    list_best: ListBest
    token_of: TokenOf


@cache
def kernel() -> Kernel:
    """Load the functions; they return quickly and hold the GIL. Raises ConfigError if the library cannot be loaded."""
    try:
        library = ctypes.PyDLL(str(LIBRARY))
    except OSError as error:
        raise ConfigError(
            f"the compiled part of the engine cannot be loaded ({error}): "
            "`make app` compiles it in a checkout, `pip install` elsewhere"
        ) from error
    pointer, number, real = ctypes.c_void_p, ctypes.c_int32, ctypes.c_double
    step = (pointer, pointer, pointer, number, number, real, real, number, pointer)
    prototypes: dict[str, Any] = {
        "look_at": ctypes.PYFUNCTYPE(ctypes.c_bool, pointer, pointer, number, ctypes.c_bool),
        "write_step": ctypes.PYFUNCTYPE(None, *step),
        "list_all": ctypes.PYFUNCTYPE(None, pointer, number, pointer),
        "list_best": ctypes.PYFUNCTYPE(ctypes.c_bool, pointer, number, pointer, number, pointer),
        "token_of": ctypes.PYFUNCTYPE(number, pointer),
    }
    return Kernel(**{name: prototype((name, library)) for name, prototype in prototypes.items()})
