"""Embedding job: the caller's handle of one job, and the pieces in which workers receive it."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.delivery import call_back, check_may_wait
from engine.embedding import messages as m
from engine.errors import EngineError, JobTimeout, ModelError
from engine.owner import OwnerProcess
from engine.step_parts import Floats


class EmbedResult(NamedTuple):
    """Result of a job: vectors in the order of the texts, float32 (n, dim); after a cancel, missing rows are NaN.

    is_cut: for each text, whether it was truncated to the model's maximum length. num_tokens: tokens computed,
    including special tokens but not padding; None where an external engine does not report them. elapsed_s: from submit
    to the last vector; compute_s: summed over all workers.
    """

    vectors: Floats
    is_cut: npt.NDArray[np.bool_]
    num_tokens: int | None
    elapsed_s: float
    compute_s: float
    is_cancelled: bool

    @property
    def num_cut(self) -> int:
        """Number of truncated texts."""
        return int(self.is_cut.sum())


@dataclass(eq=False)
class Piece:
    """Texts of one job sent to a worker at once; `places`: their indices in the job; `size`: their estimated tokens."""

    job: "EmbedJob"
    places: list[int]
    message: m.Embed
    size: int
    num_tries: int = 0


class EmbedJob:
    """Handle of a submitted job, as returned by EmbeddingPool.submit."""

    def __init__(
        self,
        num_texts: int,
        dim: int,
        cancel: Callable[["EmbedJob"], object],
        on_progress: Callable[[float], object] | None = None,
    ) -> None:
        self.num_texts = num_texts
        self.num_done = 0
        self._vectors: Floats = np.full((num_texts, dim), np.nan, np.float32)
        self._cancel, self._on_progress = cancel, on_progress
        self._is_cut = np.zeros(num_texts, np.bool_)
        self._size = self._done_size = 0
        self._num_tokens: int | None = 0
        self._compute_s = 0.0
        self._submitted = time.monotonic()
        self._process = OwnerProcess()
        self._lock, self._over = threading.Lock(), threading.Event()
        self._result: EmbedResult | None = None
        self._error: EngineError | None = None

    def result(self, timeout: float | None = None) -> EmbedResult:
        """Wait for the result; after cancel() it has what was computed until then.

        Raises JobTimeout after `timeout` seconds (the job continues), or the EngineError that ended the job.
        """
        if not self.done():
            check_may_wait()
            self._process.check_pool()
        if not self._over.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
            raise JobTimeout(
                f"no result after {timeout:g} s; the job continues, {self.num_done:,} of {self.num_texts:,} texts done"
            )
        if self._error is not None:
            raise self._error.bare()
        assert self._result is not None
        return self._result

    def cancel(self) -> bool:
        """Cancel at once, discarding what workers are computing for it; return False if the job has ended already."""
        if self.done():
            return False
        self._cancel(self)
        self._finish(is_cancelled=True)
        return True

    def done(self) -> bool:
        """Return True once there is a result or an error."""
        return self._over.is_set()

    @property
    def progress(self) -> float:
        """Share of the work done, 0 to 1, by estimated text length."""
        return self._done_size / self._size if self._size else float(self.done())

    # Called by the pool

    def begin(self, pieces: list[Piece]) -> None:
        """Register the job's pieces before they are queued; a job without pieces is finished at once."""
        self._size = sum(piece.size for piece in pieces)
        if not pieces:
            self._finish()

    def on_answer(self, piece: Piece, answer: m.Vectors | m.Unusable) -> None:
        """Store a worker's answer; called on that worker's thread."""
        if isinstance(answer, m.Unusable):
            self.fail(ModelError(self._complaint(piece, answer)))
            return
        with self._lock:
            if self.done():
                return
            rows = np.frombuffer(answer.rows, np.float32)
            self._vectors[piece.places] = rows.reshape(len(piece.places), -1)
            self.num_done += len(piece.places)
            self._done_size += piece.size
            if self._num_tokens is not None and answer.num_tokens is not None:
                self._num_tokens += answer.num_tokens
            else:
                self._num_tokens = None
            self._is_cut[[piece.places[place] for place in answer.cut]] = True
            self._compute_s += answer.compute_s
        self._tell()
        if self.num_done == self.num_texts:
            self._finish()

    def _tell(self) -> None:
        """Report progress to the listener; what it raises is logged, and cannot affect the workers."""
        if self._on_progress is not None:
            call_back(partial(self._on_progress, self.progress), "a progress listener of an embedding job")

    def fail(self, error: EngineError) -> None:
        """End the job with an error, unless it has ended."""
        with self._lock:
            if not self.done():
                self._error = error.bare()
                self._over.set()
        self._cancel(self)

    def _finish(self, *, is_cancelled: bool = False) -> None:
        with self._lock:
            if not self.done():
                elapsed_s = time.monotonic() - self._submitted
                counts = (self._num_tokens, elapsed_s, self._compute_s)
                self._result = EmbedResult(self._vectors, self._is_cut, *counts, is_cancelled)
                self._over.set()

    def _complaint(self, piece: Piece, answer: m.Unusable) -> str:
        if answer.place < 0:
            return f"the model failed on a text: {answer.reason}. Remove it, or choose another model or backend."
        text = f"text {piece.places[answer.place] + 1:,} of {self.num_texts:,}"
        return f"{text}: {answer.reason}. Remove it, or choose another model or backend."
