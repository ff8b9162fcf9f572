"""Binding of the compiled kernel.c: its structures and functions. `pip install` compiles it, via hatch_build.py."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from engine.errors import ConfigError
from engine.specs import MAX_RECORDED
from engine.stages import MAX_STAGES

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


class Stages(ctypes.Structure):
    """What the stages of a sampler chain leave of one row; kernel.c documents it. `cut` follows MAX_RECORDED tokens."""

    _fields_ = (
        ("num", ctypes.c_int32),
        ("num_top", ctypes.c_int32),
        ("last_size", ctypes.c_int32),
        ("kept", ctypes.c_int32 * MAX_STAGES),
        ("mass", ctypes.c_float * MAX_STAGES),
        ("cut", ctypes.c_uint8 * MAX_RECORDED),
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


class WriteWatched(Protocol):
    """Signature of write_watched: addresses of a Look and its row; addresses of the ids (int32) of all words and of
    where each word's end (int32); number of words; output address."""

    def __call__(self, seen: int, row: int, ids: int, ends: int, num_words: int, out: int, /) -> None: ...


class ListAll(Protocol):
    """Signature of list_all: address of a row, its number of logits, address of Candidates."""

    def __call__(self, row: int, num_vocab: int, out: int, /) -> None: ...


class ListBest(Protocol):
    """Signature of list_best: address of a Look and how many of its best tokens to list; address and number of banned
    ids (int32); address of Candidates. Returns False if nothing is left."""

    def __call__(self, seen: int, num_best: int, banned: int, num_banned: int, out: int, /) -> bool: ...


class BeginStages(Protocol):
    """Signature of begin_stages: addresses of a Look and Stages, and how many of the best tokens to follow."""

    def __call__(self, seen: int, k: int, out: int, /) -> None: ...


class MarkBanned(Protocol):
    """Signature of mark_banned: addresses of a Look and its row; address and number of banned ids (int32); address of
    Stages."""

    def __call__(self, seen: int, row: int, banned: int, num_banned: int, out: int, /) -> None: ...


class MarkStage(Protocol):
    """Signature of mark_stage: addresses of a Look, its row and Candidates; whether the stage may forbid tokens by
    their logits; address of Stages."""

    def __call__(self, seen: int, row: int, left: int, may_forbid: bool, out: int, /) -> None: ...


class WriteStages(Protocol):
    """Signature of write_stages: address of Stages, number of candidates recorded, output address."""

    def __call__(self, found: int, k: int, out: int, /) -> None: ...


class TokenOf(Protocol):
    """Signature of token_of: address of Candidates of which one was drawn."""

    def __call__(self, drawn: int, /) -> int: ...


class Kernel(NamedTuple):
    """The functions of kernel.c, which documents them."""

    look_at: LookAt
    write_step: WriteStep
    write_watched: WriteWatched
    list_all: ListAll
    list_best: ListBest
    begin_stages: BeginStages
    mark_banned: MarkBanned
    mark_stage: MarkStage
    write_stages: WriteStages
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
        "write_watched": ctypes.PYFUNCTYPE(None, pointer, pointer, pointer, pointer, number, pointer),
        "list_all": ctypes.PYFUNCTYPE(None, pointer, number, pointer),
        "list_best": ctypes.PYFUNCTYPE(ctypes.c_bool, pointer, number, pointer, number, pointer),
        "begin_stages": ctypes.PYFUNCTYPE(None, pointer, number, pointer),
        "mark_banned": ctypes.PYFUNCTYPE(None, pointer, pointer, pointer, number, pointer),
        "mark_stage": ctypes.PYFUNCTYPE(None, pointer, pointer, pointer, ctypes.c_bool, pointer),
        "write_stages": ctypes.PYFUNCTYPE(None, pointer, number, pointer),
        "token_of": ctypes.PYFUNCTYPE(number, pointer),
    }
    return Kernel(**{name: prototype((name, library)) for name, prototype in prototypes.items()})
