"""Exact figures of one row of logits: normaliser, entropy, rank, the k most probable tokens."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.errors import ModelError

Row = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]

_SMALL = 2048
_WIDEST = 64
_NOTHING = np.float32(-1000)
"""Its exponential is 0; in the place of -inf it keeps 0 times the exponent a number."""


class Figures(NamedTuple):
    """normaliser: log of the summed exponentials of the logits; entropy in nats."""

    normaliser: float
    entropy: float


def largest(*parts: Row) -> float:
    """The largest logit of all parts; raises ModelError for NaN, +inf, or nothing finite."""
    highest = float(np.maximum.reduce([part.max(initial=-np.inf) for part in parts]))
    if not math.isfinite(highest):
        raise ModelError("the logits hold NaN or nothing finite: the weights are damaged or the model overflowed")
    return highest


class Distribution:
    """Measures rows of one vocabulary size in buffers made once."""

    def __init__(self, num_vocab: int) -> None:
        self._shifted = np.empty(num_vocab, np.float32)
        self._exp = np.empty(num_vocab, np.float32)
        self._above = np.empty(num_vocab, np.bool_)

    def measure(self, row: Row, highest: float) -> Figures:
        """Figures of the row, shape (vocab,), whose largest logit is `highest`."""
        shifted, exp = self._shifted, self._exp
        np.subtract(row, np.float32(highest), out=shifted)
        np.maximum(shifted, _NOTHING, out=shifted)
        np.exp(shifted, out=exp)
        total = float(exp.sum())
        weighted = float(np.dot(shifted, exp))
        log_total = math.log(total)
        return Figures(highest + log_total, max(log_total - weighted / total, 0.0))

    def rank(self, row: Row, token: int) -> int:
        """1 + the number of tokens with a larger logit."""
        np.greater(row, row[token], out=self._above)
        return 1 + int(np.count_nonzero(self._above))

    def top(self, row: Row, k: int) -> Ids:
        """Ids of the k largest logits, largest first, ties by id; shape (min(k, vocab),).

        The k-th largest of the maxima of at least 4k blocks is a lower bound for the k-th largest logit, so only the
        few logits from there up are sorted. Raises ModelError as largest() does.
        """
        size = len(row)
        k = min(k, size)
        width = min(_WIDEST, size // (4 * k))
        if size < _SMALL or width < 2:
            largest(row)
            return np.argsort(-row, kind="stable")[:k]
        num_blocks = size // width
        maxima = row[: width * num_blocks].reshape(width, num_blocks).max(axis=0)
        largest(maxima, row[width * num_blocks :])
        threshold = np.partition(maxima, num_blocks - k)[num_blocks - k]
        np.greater_equal(row, threshold, out=self._above)
        survivors = np.flatnonzero(self._above)
        return survivors[np.argsort(-row[survivors], kind="stable")[:k]]
