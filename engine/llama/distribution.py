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
"""Its exponential is 0, and so is 0 times it."""


class Figures(NamedTuple):
    """normaliser: log of the summed exponentials of the logits; entropy in nats."""

    normaliser: float
    entropy: float


def largest(row: Row) -> float:
    """The largest logit; raises ModelError for NaN, +inf, or nothing finite."""
    return checked(float(np.maximum.reduce(row)))


def checked(highest: float) -> float:
    """The largest logit of a row, if it is finite: it is NaN where any logit is. Raises ModelError."""
    if not math.isfinite(highest):
        raise ModelError("the logits hold NaN or nothing finite: the weights are damaged or the model overflowed")
    return highest


class Top(NamedTuple):
    """The most probable tokens, largest logit first, ties by id: ids and logits, shape (k,) each."""

    ids: Ids
    logits: Row

    def rank(self, logit: float) -> int:
        """1 + the number of larger logits, for one that is among these."""
        listed: list[float] = self.logits.tolist()
        return 1 + listed.index(logit)


class Distribution:
    """Measures rows of one vocabulary size in buffers made once.

    A decode leaves nothing of this code in the caches, so it is written for few and small steps: ufuncs and methods of
    arrays without numpy's Python in between took half the time of the same with it.
    """

    def __init__(self, num_vocab: int) -> None:
        self._shifted = np.empty(num_vocab, np.float32)
        self._exp = np.empty(num_vocab, np.float32)
        self._above = np.empty(num_vocab, np.bool_)

    def measure(self, row: Row, highest: float) -> Figures:
        """Figures of the row, shape (vocab,), whose largest logit is `highest`."""
        shifted, exp = self._shifted, self._exp
        np.subtract(row, highest, out=shifted)
        np.exp(shifted, out=exp)
        total = float(np.add.reduce(exp))
        weighted = float(np.vdot(shifted, exp))
        if math.isnan(weighted):  # -inf times 0, of which vdot, unlike dot, does not warn
            np.maximum(shifted, _NOTHING, out=shifted)
            weighted = float(np.vdot(shifted, exp))
        log_total = math.log(total)
        return Figures(highest + log_total, max(log_total - weighted / total, 0.0))

    def rank(self, row: Row, token: int) -> int:
        """1 + the number of tokens with a larger logit."""
        np.greater(row, row[token], out=self._above)
        return 1 + int(np.count_nonzero(self._above))

    def top(self, row: Row, k: int) -> Top:
        """The min(k, vocab) largest logits of the row.

        The k-th largest of the maxima of at least 4k blocks is a lower bound for the k-th largest logit, so only the
        few logits from there up are sorted. Raises ModelError as largest() does.
        """
        size = len(row)
        k = min(k, size)
        width = min(_WIDEST, size // (4 * k))
        if size < _SMALL or width < 2:
            largest(row)
            ids = (-row).argsort(kind="stable")[:k]
            return Top(ids, row[ids])
        num_blocks = size // width
        num_whole = width * num_blocks
        blocks = (row if num_whole == size else row[:num_whole]).reshape(width, num_blocks)
        maxima = np.maximum.reduce(blocks, axis=0)
        maxima.sort()  # NaN comes last
        highest = maxima[-1]
        if num_whole < size:
            highest = np.maximum(highest, np.maximum.reduce(row[num_whole:]))
        checked(float(highest))
        np.greater_equal(row, maxima[-k], out=self._above)
        survivors = self._above.nonzero()[0]
        logits = row[survivors]
        order = (-logits).argsort(kind="stable")[:k]
        return Top(survivors[order], logits[order])
