"""The array of candidates that llama.cpp's samplers work on, over memory of our own and made only once."""

import ctypes
from array import array
from typing import NamedTuple

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

CANDIDATE = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
_NOTHING_SELECTED = -1
_FEW = 1024
"""Up to so many rows are looked up in a dictionary: that touches less memory than a table by id."""


class Drawn(NamedTuple):
    """The selected candidate, its probability, and how many the samplers have left with one above 0."""

    token: int
    p: float
    num_kept: int


class Candidates:
    """A llama_token_data_array with room for `size` rows of CANDIDATE, ids from 0 to size - 1.

    Fill it or what `take` gives, hand `pointer` to samplers, then read `kept`, or where they drew `drawn` and `p_of`.
    """

    def __init__(self, size: int) -> None:
        self._rows = np.zeros(size, CANDIDATE)
        self._ids, self._logits, self._p = (self._rows[name] for name in ("id", "logit", "p"))
        self._start: int = self._rows.ctypes.data
        # the struct as four words: data, size, selected, sorted
        self._words = array("q", bytes(32))
        self.pointer = ctypes.cast(self._words.buffer_info()[0], llama.llama_token_data_array_p)
        self._p_by_id = np.zeros(size, np.float32)

    def take(self, size: int) -> npt.NDArray[np.void]:
        """The first `size` rows, to be filled; nothing selected, not sorted."""
        words = self._words
        words[0], words[1], words[2], words[3] = self._start, size, _NOTHING_SELECTED, 0
        return self._rows[:size]

    def fill(self, ids: npt.NDArray[np.intp], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Take as many rows as there are ids and fill them; gives their logits, which may still be changed."""
        size = len(ids)
        self.take(size)
        self._ids[:size] = ids
        filled = self._logits[:size]
        filled[:] = logits
        return filled

    @property
    def kept(self) -> npt.NDArray[np.void]:
        """The rows that the samplers have left; some stages move the start of the array."""
        return self._rows[self._where()]

    def _where(self) -> slice:
        address, size, _selected, _is_sorted = self._words
        first = (address - self._start) // CANDIDATE.itemsize
        return slice(first, first + size)

    def drawn(self) -> Drawn:
        """What a chain that ended in a draw has taken."""
        kept = self._where()
        p, place = self._p[kept], self._words[2]
        return Drawn(int(self._ids[kept.start + place]), float(p[place]), int(np.count_nonzero(p)))

    def p_of(self, ids: npt.NDArray[np.intp]) -> list[float]:
        """After drawn(): the probability of each id just before the draw, 0 where cut."""
        kept = self._where()
        kept_ids, kept_p = self._ids[kept], self._p[kept]
        if len(kept_ids) <= _FEW:
            few = dict(zip(kept_ids.tolist(), kept_p.tolist(), strict=True))
            return [few.get(token, 0.0) for token in ids.tolist()]
        self._p_by_id[kept_ids] = kept_p
        found: list[float] = self._p_by_id[ids].tolist()
        self._p_by_id[kept_ids] = 0
        return found
