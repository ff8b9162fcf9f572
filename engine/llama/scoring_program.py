"""Child program of a ScoringModel: scores given tokens, writes whole rows of logits or compares with written ones."""

import errno
import math
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from engine.errors import ModelError
from engine.files import open_regular
from engine.llama.context import OK, Chunk, Context, Decoder
from engine.llama.distribution import Distribution, Drawn, Logits, Row
from engine.llama.model import Model
from engine.llama.scoring import Batch, LoadScoring, Scored, row_bytes
from engine.process.serving import serve


class Rows:
    """File of rows of logits, written or read in order; each has those of the whole vocabulary, as float32."""

    def __init__(self, path: Path, num_vocab: int, *, is_read: bool) -> None:
        # unbuffered: what cannot be written fails at once
        self._file: BinaryIO = open_regular(path) if is_read else open(path, "wb", buffering=0)  # noqa: SIM115
        self._num_bytes = row_bytes(num_vocab)

    def write(self, logits: Logits) -> None:
        """Append a row, for the program that reads it. Raises ModelError where the disk is full."""
        try:
            if self._file.write(logits.data) < self._num_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._file.close()
            raise ModelError(f"the rows of logits cannot be written ({error.strerror})") from error

    def read(self) -> Logits:
        """Return the next row. Raises ModelError where there is none."""
        content = self._file.read(self._num_bytes)
        if len(content) < self._num_bytes:
            raise ModelError("the file of logits to compare with is shorter than expected")
        return np.frombuffer(content, "<f4")


def kl_divergence(ours: Logits, theirs: Logits) -> float:
    """Return KL(ours || theirs) in nats, of rows of logits; infinite where `theirs` rules out what `ours` does not."""
    log_p, log_q = _log_softmax(ours), _log_softmax(theirs)
    p = np.exp(log_p)
    possible = np.flatnonzero(p)
    return max(float(np.sum(p[possible] * (log_p[possible] - log_q[possible]))), 0.0)


def _log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """Return log-probabilities; the normaliser of a step's record has the precision of 32-bit exponentials only."""
    shifted = logits.astype(np.float64) - logits.max()
    found: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return found


OpenModel = Callable[[LoadScoring], tuple[Model, Decoder]]
"""Function that loads a model with what decodes its batches. Raises EngineError."""


class Scorer:
    """A loaded model and the part of the text that it has decoded."""

    def __init__(self, load: LoadScoring, open_model: OpenModel) -> None:
        self._model, self._context = open_model(load)
        self._distribution = Distribution(self._model.num_vocab)
        self._distribution.use_threads(load.threads)
        self._rows = Rows(Path(load.rows), self._model.num_vocab, is_read=load.compares)
        self._compares, self._k = load.compares, load.num_candidates
        self._position = 0

    @property
    def num_vocab(self) -> int:
        """Size of the vocabulary."""
        return self._model.num_vocab

    def scored(self, batch: Batch) -> Scored:
        """Decode a batch and score what it predicts.

        Raises ModelError where it cannot be decoded, for a row that is not finite, and for a full disk.
        """
        self._model.check_ids([*batch.ids, *batch.predicted])
        num_rows = self._context.fill([Chunk(0, batch.ids, self._position, len(batch.predicted))])
        code = self._context.decode()
        if code != OK:
            raise ModelError(f"llama_decode returned {code}: the context cannot hold these tokens")
        self._position += len(batch.ids)
        rows = self._context.logits(num_rows) if num_rows else []
        steps = b"".join(self._step(row, token) for row, token in zip(rows, batch.predicted, strict=True))
        if not self._compares:
            for row in rows:
                self._rows.write(row.logits)
            return Scored(steps, b"")
        kl = np.array([kl_divergence(self._rows.read(), row.logits) for row in rows], np.float64)
        return Scored(steps, kl.tobytes())

    def _step(self, row: Row, token: int) -> bytes:
        """Return the record of a token. Raises ModelError for a row that is not finite."""
        self._distribution.look(row, self._k, is_measured=True)
        return self._distribution.record(row, Drawn(token, math.nan, 0), 0.0, self._k)


def main(end: socket.socket) -> None:
    """Load the GGUF file that the first request names, then score batches of its one text."""
    serve_scoring(end, _open)


def _open(load: LoadScoring) -> tuple[Model, Decoder]:
    model = Model(load.model, load.spec)
    return model, Context(model, load.spec, load.threads, load.spec.threads_batch or load.threads)


def serve_scoring(end: socket.socket, open_model: OpenModel) -> None:
    """Have `open_model` load the model that the first request names, then score batches of its one text."""
    loaded: list[Scorer] = []

    def reply(request: LoadScoring | Batch) -> int | Scored:
        if isinstance(request, Batch):
            return loaded[0].scored(request)
        loaded.append(Scorer(request, open_model))
        return loaded[0].num_vocab

    serve(end, LoadScoring | Batch, reply)
