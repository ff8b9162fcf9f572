"""Parts of a step: its row in a step table, columns of stages and watched words, candidates."""

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.stages import FORBIDDEN

FORCED, RESAMPLED, INSPECTED, SHARED_MOMENT = 1, 2, 4, 16
"""Flags of a record. INSPECTED: it has a log-probability; other figures are NaN, or rank 0, where the engine does not
tell them. SHARED_MOMENT: it came together with the token before it, so that its time is not its own."""
RECORD = np.dtype(
    [
        ("id", "<i4"),
        ("rank", "<i4"),
        ("logprob", "<f8"),
        ("entropy", "<f8"),
        ("normaliser", "<f8"),
        ("p_final", "<f8"),
        ("draw", "<f8"),
        ("elapsed_s", "<f8"),
        ("flags", "<i4"),
        ("num_kept", "<i4"),
    ],
    align=True,
)
Records = npt.NDArray[np.void]
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


@cache
def step_dtype(k: int, num_stages: int = 0, num_watched: int = 0) -> np.dtype[np.void]:
    """Return the row dtype of a step: its RECORD; the id, logprob and final probability of each of k candidates; where
    stages are recorded, the candidates that each left, their probability, and the stage that cut each of k; where words
    are watched, the logprob and rank of each."""
    fields: list[Any] = [("top_ids", "<i4", (k,)), ("top_logprobs", "<f4", (k,)), ("top_p_final", "<f4", (k,))]
    if num_stages:
        fields += [("stage_kept", "<i4", (num_stages,)), ("stage_mass", "<f4", (num_stages,)), ("top_cut", "u1", (k,))]
    if num_watched:
        fields += [("watched_logprob", "<f8", (num_watched,)), ("watched_rank", "<i4", (num_watched,))]
    return np.dtype([("record", RECORD), *fields], align=True)


@cache
def row_packer(k: int) -> Callable[..., bytes]:
    """Return a function that makes the bytes of a row of `step_dtype(k)` from its values in order: those of its RECORD,
    then the ids, log-probabilities and final probabilities of k candidates."""
    values = f"<2i6d2i{k}i{2 * k}f"
    return struct.Struct(f"{values}{step_dtype(k).itemsize - struct.calcsize(values)}x").pack


@cache
def watched_at(k: int, num_stages: int, num_watched: int) -> int:
    """Return where the columns of watched words begin in a row of `step_dtype`, in bytes."""
    offsets: Any = step_dtype(k, num_stages, num_watched).fields
    return int(offsets["watched_logprob"][1])


class Candidate(NamedTuple):
    """Candidate token of a step; logprob in nats, p_final the probability just before the draw."""

    id: int
    bytes: bytes
    text: str
    logprob: float
    p_final: float


class Stage(NamedTuple):
    """What one sampler stage left of a step's candidates.

    kept: candidates left after it; mass: their probability in the model's own distribution, before any sampler; cut:
    ids of the recorded candidates that it removed, most probable first.
    """

    name: str
    kept: int
    mass: float
    cut: tuple[int, ...]


class WatchedWord(NamedTuple):
    """Probability of a watched word at a step, in the model's own distribution, before any sampler.

    ids: its set of tokens; logprob: natural log of their summed probability; rank: that of the best of them.
    """

    ids: tuple[int, ...]
    logprob: float
    rank: int


class StageColumns(NamedTuple):
    """The s recorded stages of n steps with k candidates, as columns.

    kept: candidates left after each stage; mass: their probability in the model's own distribution; both (n, s). cut
    (n, k): the stage that removed each candidate, counted from 1, or 0 if none did; plus FORBIDDEN where the grammar
    forbids the candidate.
    """

    kept: Ints
    mass: Floats
    cut: npt.NDArray[np.uint8]

    @property
    def cut_by(self) -> npt.NDArray[np.uint8]:
        """The stage that removed each candidate, from 1, or 0; shape (n, k)."""
        return self.cut & ~np.uint8(FORBIDDEN)

    @property
    def is_forbidden(self) -> npt.NDArray[np.bool_]:
        """True for candidates that the grammar forbids, shape (n, k)."""
        return self.cut >= FORBIDDEN

    def rows(self, here: slice) -> "StageColumns":
        """Return the columns of some steps."""
        return StageColumns(self.kept[here], self.mass[here], self.cut[here])


class WatchedColumns(NamedTuple):
    """The w watched words of n steps as columns, both (n, w); NaN and 0 where a step has no distribution."""

    logprob: npt.NDArray[np.float64]
    rank: Ints
