"""Candidate array for llama.cpp's samplers, over memory of our own that is allocated only once."""

import ctypes
from array import array

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from engine.llama.kernel import CANDIDATE, kernel

_NOTHING_SELECTED = -1


class Candidates:
    """A llama_token_data_array with room for `size` rows of CANDIDATE, ids from 0 to size - 1.

    Have the kernel fill it at `address`, call `fill`, or write to the rows that `take` returns; pass `pointer` to
    samplers; then read `kept`, and `token` if they drew one.
    """

    def __init__(self, size: int) -> None:
        self._rows = np.zeros(size, CANDIDATE)
        self._start: int = self._rows.ctypes.data
        # the struct as words: data, size, selected, sorted; and where data starts
        self._words = array("q", (self._start, 0, _NOTHING_SELECTED, 0, self._start))
        self.address = self._words.buffer_info()[0]
        self.pointer = ctypes.cast(self.address, llama.llama_token_data_array_p)
        self._token_of = kernel().token_of

    def take(self, size: int, *, is_sorted: bool = False) -> npt.NDArray[np.void]:
        """Reset to the first `size` rows, with nothing selected, and return them to be filled.

        is_sorted: they come by falling logits, and stay so.
        """
        words = self._words
        words[0], words[1], words[2], words[3] = self._start, size, _NOTHING_SELECTED, is_sorted
        return self._rows[:size]

    def fill(self, ids: npt.NDArray[np.integer], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Fill as many rows as there are ids; return a view of their logits, which may still be changed."""
        rows = self.take(len(ids))
        rows["id"] = ids
        filled: npt.NDArray[np.float32] = rows["logit"]
        filled[:] = logits
        return filled

    @property
    def kept(self) -> npt.NDArray[np.void]:
        """Rows that have survived the samplers; some stages move the start of the array."""
        first = (self._words[0] - self._start) // CANDIDATE.itemsize
        return self._rows[first : first + self._words[1]]

    @property
    def token(self) -> int:
        """Token selected by a chain that ends in a draw."""
        return self._token_of(self.address)
