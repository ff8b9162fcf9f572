"""The array of candidates that llama.cpp's samplers work on, over memory of our own and made only once."""

import ctypes

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

CANDIDATE = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
_NOTHING_SELECTED = -1


class Candidates:
    """A llama_token_data_array with room for `size` rows of CANDIDATE.

    Fill it or what `take` gives, hand `pointer` to a sampler, then read `kept` and `selected`.
    """

    def __init__(self, size: int) -> None:
        self._rows = np.zeros(size, CANDIDATE)
        self._ids, self._logits = self._rows["id"], self._rows["logit"]
        self._start: int = self._rows.ctypes.data
        # the struct as four words: data, size, selected, sorted
        self._words = np.zeros(4, np.int64)
        self.pointer = ctypes.cast(self._words.ctypes.data, llama.llama_token_data_array_p)

    def take(self, size: int) -> npt.NDArray[np.void]:
        """The first `size` rows, to be filled; nothing selected, not sorted."""
        self._words[:] = (self._start, size, _NOTHING_SELECTED, 0)
        return self._rows[:size]

    def fill(self, ids: npt.NDArray[np.intp], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Take as many rows as there are ids and fill them; gives their logits, which may still be changed."""
        size = len(ids)
        self._words[:] = (self._start, size, _NOTHING_SELECTED, 0)
        self._ids[:size] = ids
        filled = self._logits[:size]
        filled[:] = logits
        return filled

    @property
    def kept(self) -> npt.NDArray[np.void]:
        """The rows that the samplers have left; some stages move the start of the array."""
        address, size = self._words[:2].tolist()
        first = (address - self._start) // CANDIDATE.itemsize
        return self._rows[first : first + size]

    @property
    def selected(self) -> int:
        """Which of `kept` was drawn."""
        return int(self._words[2])
