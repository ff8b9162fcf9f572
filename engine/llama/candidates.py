"""The array of candidates that llama.cpp's samplers work on, over memory of our own and made only once."""

import ctypes
from array import array

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from engine.llama.kernel import CANDIDATE, kernel

_NOTHING_SELECTED = -1


class Candidates:
    """A llama_token_data_array with room for `size` rows of CANDIDATE, ids from 0 to size - 1.

    Fill it, copy into it, or fill what `take` gives; hand `pointer` to samplers; then read `kept`, and `token` where
    they drew one.
    address: where the array's struct lies.
    """

    def __init__(self, size: int) -> None:
        self._rows = np.zeros(size, CANDIDATE)
        self._ids: npt.NDArray[np.int32] = self._rows["id"]
        self._start: int = self._rows.ctypes.data
        # the struct as four words: data, size, selected, sorted
        self._words = array("q", bytes(32))
        self.address = self._words.buffer_info()[0]
        self.pointer = ctypes.cast(self.address, llama.llama_token_data_array_p)

    def take(self, size: int) -> npt.NDArray[np.void]:
        """The first `size` rows, to be filled; nothing selected, not sorted."""
        words = self._words
        words[0], words[1], words[2], words[3] = self._start, size, _NOTHING_SELECTED, 0
        return self._rows[:size]

    def fill(self, ids: npt.NDArray[np.integer], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Take as many rows as there are ids and fill them; gives their logits, which may still be changed."""
        rows = self.take(len(ids))
        rows["id"] = ids
        filled: npt.NDArray[np.float32] = rows["logit"]
        filled[:] = logits
        return filled

    def fill_all(self, logits: int) -> npt.NDArray[np.float32]:
        """Take all rows and fill them from the logits at that address; gives theirs, which may still be changed."""
        rows = self.take(len(self._rows))
        kernel().list_all(logits, len(rows), self._start)
        filled: npt.NDArray[np.float32] = rows["logit"]
        return filled

    def copy(self, first: int, size: int) -> None:
        """Take as many rows as lie at the address `first`, and fill them with those."""
        self.take(size)
        ctypes.memmove(self._start, first, size * CANDIDATE.itemsize)

    @property
    def kept(self) -> npt.NDArray[np.void]:
        """The rows that the samplers have left; some stages move the start of the array."""
        first = self._first
        return self._rows[first : first + self._words[1]]

    @property
    def token(self) -> int:
        """What a chain that ended in a draw has taken."""
        return int(self._ids[self._first + self._words[2]])

    @property
    def _first(self) -> int:
        return (self._words[0] - self._start) // CANDIDATE.itemsize
