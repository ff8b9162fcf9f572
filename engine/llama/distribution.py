"""Exact figures of one row of logits: normaliser, entropy, rank, the k most probable tokens, and the record of a step.

kernel.c computes them; this module provides its memory.
"""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.errors import ModelError
from engine.llama.candidates import Candidates
from engine.llama.kernel import CANDIDATE, CHUNK, PART, Look, Stages, kernel
from engine.llama.library import has_one_openmp
from engine.specs import MAX_RECORDED, MAX_WATCHED
from engine.stages import FORBIDDEN, MAX_STAGES
from engine.step_parts import INSPECTED, RECORD, step_dtype, watched_at

_BYTES_OF_CANDIDATE = 12
"""Of a candidate in a step: its id, log-probability and final probability."""

Logits = npt.NDArray[np.float32]


class Row(NamedTuple):
    """Logits (vocab,) that follow one token, and their memory address."""

    logits: Logits
    address: int


def row_of(logits: Logits) -> Row:
    """Return a Row over a contiguous array, which must outlive it."""
    return Row(logits, logits.ctypes.data)


class Drawn(NamedTuple):
    """A chosen token: `draw` is the uniform number that decided, NaN if there was none."""

    token: int
    draw: float
    flags: int


class Watched:
    """Watched words, each a set of token ids, as the kernel reads them. num: how many there are."""

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self.num = len(words)
        self._ids = np.array([token for word in words for token in word], np.int32)
        self._ends = np.cumsum([len(word) for word in words], dtype=np.int32)
        self.ids_at: int = self._ids.ctypes.data
        self.ends_at: int = self._ends.ctypes.data


class Distribution:
    """Analyses rows of one vocabulary size and records the steps taken on them.

    After look() the first k of `top`, rows of CANDIDATE, are the most probable tokens, largest logit first, ties by id.
    address: memory address of the row's results (a Look).
    """

    def __init__(self, num_vocab: int) -> None:
        self._look_at, self._write_step, self._write_stages = (
            kernel().look_at,
            kernel().write_step,
            kernel().write_stages,
        )
        self._write_watched = kernel().write_watched
        self._begin_stages, self._mark_banned, self._mark_stage = (
            kernel().begin_stages, kernel().mark_banned, kernel().mark_stage,
        )  # fmt: skip
        self._shares_threads = has_one_openmp()
        self._num_vocab = num_vocab
        self.top = np.zeros(num_vocab, CANDIDATE)
        self._heap = np.zeros(num_vocab, np.uint64)
        self._p_by_id = np.zeros(num_vocab, np.float32)
        self._parts = np.zeros(-(-num_vocab // CHUNK), PART)
        rooms = {"top": self.top, "heap": self._heap, "p_by_id": self._p_by_id, "parts": self._parts}
        places = {name: room.ctypes.data for name, room in rooms.items()}
        self._seen = Look(**places, num_vocab=num_vocab, num_threads=1)
        self.address = ctypes.addressof(self._seen)
        self._stages = Stages()
        self._stages_at = ctypes.addressof(self._stages)
        self._out = np.zeros(step_dtype(MAX_RECORDED, MAX_STAGES, MAX_WATCHED).itemsize, np.uint8)
        self._out_at: int = self._out.ctypes.data
        self._written = self._out.data

    def look(self, row: Row, k: int, *, is_measured: bool) -> None:
        """Find the min(k, vocab) most probable tokens of a row, at least one, and its figures if `is_measured`.

        Raises ModelError for a row that holds NaN, +inf or nothing finite.
        """
        if not self._look_at(self.address, row.address, min(max(k, 1), self._num_vocab), is_measured):
            raise ModelError(
                "the logits contain NaN or no finite value: the weights are damaged or the model overflowed"
            )

    def use_threads(self, num_threads: int) -> None:
        """Set the thread count for the next rows: the one that llama.cpp decodes with, or 1 if OpenMP's threads are not
        shared with it."""
        self._seen.num_threads = num_threads if self._shares_threads else 1

    def begin_stages(self, k: int) -> None:
        """Begin to record what the stages of a sampler chain leave of the row last looked at, which must be measured;
        the k most probable tokens are followed."""
        self._begin_stages(self.address, k, self._stages_at)

    def mark_banned(self, row: Row, banned: int, num_banned: int) -> None:
        """Record a stage that bans tokens, given by the address and number of their ids (int32)."""
        self._mark_banned(self.address, row.address, banned, num_banned, self._stages_at)

    def mark_stage(self, row: Row, left: Candidates, *, may_forbid: bool = False) -> None:
        """Record a stage that has left these candidates. may_forbid: it sets the logits of some to -inf."""
        self._mark_stage(self.address, row.address, left.address, may_forbid, self._stages_at)

    def mark_forbidden(self, is_forbidden: npt.NDArray[np.bool_]) -> None:
        """Record which of the most probable tokens, as many as are followed, the grammar forbids; after all stages."""
        cut = np.frombuffer(self._stages.cut, np.uint8, len(is_forbidden))
        cut[is_forbidden] |= FORBIDDEN

    def record(
        self,
        row: Row,
        drawn: Drawn,
        elapsed_s: float,
        k: int,
        left: Candidates | None = None,
        *,
        num_stages: int = 0,
        watched: Watched | None = None,
    ) -> bytes:
        """Return the step that chose a token on the row last looked at, as a row of steps.step_dtype with k
        candidates; k must be 0, and no word watched, if that row was not measured.

        left: candidates that survived the samplers, None if unknown. num_stages: how many stages were recorded.
        watched: words whose probability and rank are recorded too; their ids must be in the vocabulary.
        """
        token, draw, flags = drawn
        if self._seen.is_measured:
            flags |= INSPECTED
        drawn_from = left.address if left else None
        self._write_step(self.address, row.address, drawn_from, token, k, draw, elapsed_s, flags, self._out_at)
        num_watched = watched.num if watched else 0
        dtype, end = step_dtype(k, num_stages, num_watched), RECORD.itemsize + _BYTES_OF_CANDIDATE * k
        self._out[end : dtype.itemsize] = 0  # bytes between two columns and behind the last
        if num_stages:
            assert self._stages.num == num_stages
            self._write_stages(self._stages_at, k, self._out_at + end)
        if watched:
            columns_at = self._out_at + watched_at(k, num_stages, num_watched)
            self._write_watched(self.address, row.address, watched.ids_at, watched.ends_at, num_watched, columns_at)
        return bytes(self._written[: dtype.itemsize])
