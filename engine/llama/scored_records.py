"""Records of scored prompts, kept beside the prefix cache: prompts that share a beginning compute it once. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.llama.prefix import shared_prefix
from engine.specs import TokenSets
from engine.step_parts import step_dtype

MOST_BYTES = 16 << 20
"""Bytes of records: 100 prompts of 512 tokens with 20 candidates each."""


class ScoredPrompt:
    """Ids of a scored prompt and its records so far, for its tokens from the second on: rows of step_dtype with k
    candidates and the probabilities of `watched` words."""

    def __init__(self, ids: Sequence[int], k: int, watched: TokenSets = ()) -> None:
        self.ids = np.asarray(ids, np.int32)
        self.k, self.watched = k, watched
        self.rows = bytearray()
        self._row_bytes = step_dtype(k, num_watched=len(watched)).itemsize

    @property
    def most_bytes(self) -> int:
        """Bytes of ids and records once all of it is scored."""
        return self.ids.nbytes + self._row_bytes * len(self.ids)

    def num_shared(self, ids: npt.NDArray[np.int32]) -> int:
        """Return how many first tokens of `ids` need not be computed: each predicts one whose record is here."""
        return min(max(shared_prefix(self.ids, ids) - 1, 0), len(self.rows) // self._row_bytes)


class Shared(NamedTuple):
    """First tokens of a prompt that need not be computed, and the rows that begin with the records they predict."""

    num_tokens: int
    rows: bytearray


class ScoredRecords:
    """The last scored prompts, at most `num_prompts` of them, and together at most `most_bytes` large."""

    def __init__(self, num_prompts: int, most_bytes: int = MOST_BYTES) -> None:
        self._num_prompts, self._most_bytes = num_prompts, most_bytes
        self._kept: list[ScoredPrompt] = []

    def shared(self, ids: Sequence[int], k: int, watched: TokenSets = ()) -> Shared:
        """Return the records of k candidates and of `watched` words that most of `ids` share with a kept prompt."""
        wanted = np.asarray(ids, np.int32)
        found = (Shared(one.num_shared(wanted), one.rows) for one in self._kept if (one.k, one.watched) == (k, watched))
        return max(found, key=lambda each: each.num_tokens, default=Shared(0, bytearray()))

    def begin(self, ids: Sequence[int], k: int, watched: TokenSets = ()) -> ScoredPrompt | None:
        """Return the place for the records of a new prompt, which displaces the oldest; None if they are too many."""
        prompt = ScoredPrompt(ids, k, watched)
        if prompt.most_bytes > self._most_bytes:
            return None
        self._kept.append(prompt)
        while len(self._kept) > self._num_prompts or sum(one.most_bytes for one in self._kept) > self._most_bytes:
            del self._kept[0]
        return prompt
