"""Prefix reuse: assigns new prompts to sequences so that as much as possible of them is in the KV cache already.

It also moves sequences together, so that those with a job are contiguous: only then does llama.cpp compute them in one
pass. A prompt waits for one that shares its prefix and is being computed: of a burst with one system prompt, the first
computes it and the others copy it.

Works on token ids alone, without llama.cpp: `held` lists the ids in each sequence's KV cache.
"""

from array import array
from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

WORTHWHILE = 32
"""Tokens. A shorter shared prefix is computed again, which costs one step and keeps the logits exactly the same."""


class Placement(NamedTuple):
    """Placement of a prompt on `seq_id`; its first `num_cached` tokens are reused, copied from `source` if that
    differs."""

    seq_id: int
    source: int
    num_cached: int


class Move(NamedTuple):
    """Copy of the contents of `source` to `target`, where its job goes on."""

    source: int
    target: int


class PrefixCache:
    """State of all sequences: the cached ids, the free sequences, and the prompt ids that running jobs will add.

    `can_cut` False (recurrent and hybrid models): a sequence is reused only if its whole content is a prefix.
    """

    def __init__(self, num_sequences: int, *, can_cut: bool) -> None:
        self.held = [array("i") for _ in range(num_sequences)]
        self._free = dict.fromkeys(range(num_sequences))
        self._coming: dict[int, npt.NDArray[np.int32]] = {}
        self._can_cut = can_cut

    @property
    def free(self) -> list[int]:
        """Sequences without a job, least recently used first."""
        return list(self._free)

    def place(self, prompt: Sequence[int], *, most: int, num_coming: int = 0) -> Placement:
        """Assign a free sequence to `prompt`; there must be one.

        At most `most` of its tokens are reused, and the last one is always left to compute. num_coming: number of first
        tokens that will be computed many at a time, so that other prompts may wait for them.
        """
        oldest = min(self._free, key=lambda seq_id: 2 if self.held[seq_id] else 1 - self._is_beside(seq_id))
        best = Placement(oldest, oldest, 0)
        most = min(most, len(prompt) - 1)
        ids = np.asarray(prompt, np.int32)
        if most > 0:
            for source in range(len(self.held)):
                num_shared = self._reusable(source, ids, most)
                if num_shared > best.num_cached:
                    best = self._from(source, num_shared, oldest)
        del self._free[best.seq_id]
        del self.held[best.seq_id][best.num_cached :]
        if best.source != best.seq_id:
            self.held[best.seq_id] = self.held[best.source][: best.num_cached]
        self._coming[best.seq_id] = ids[:num_coming]
        return best

    def is_coming(
        self, prompt: Sequence[int], *, most: int, num_scored: int | None = None, computing: Set[int] | None = None
    ) -> bool:
        """Return whether a running job is about to compute WORTHWHILE more tokens of `prompt` than any sequence holds.

        The wait ends by itself: when the prompt of that job is computed, or with the job. num_scored: for a scored
        prompt, how many of the tokens that are held have a record, too; computing: the only sequences that count.
        """
        most = min(most, len(prompt) - 1)
        if most < WORTHWHILE or not self._can_cut:
            return False
        ids = np.asarray(prompt, np.int32)
        held = max(self._reusable(source, ids, most) for source in range(len(self.held)))
        held = held if num_scored is None else min(held, num_scored)
        return any(
            len(self.held[seq_id]) < len(coming) and min(shared_prefix(coming, ids), most) >= held + WORTHWHILE
            for seq_id, coming in self._coming.items()
            if computing is None or seq_id in computing
        )

    def close_gaps(self) -> list[Move]:
        """Make the sequences with a job contiguous; returns the moves that the model's KV cache has to follow.

        The moves are as few as possible, and among those the ones that overwrite the least recently used contents. The
        moved contents also stay at their old place, which is then free. No moves where `can_cut` is False: the model's
        state is not a list of tokens.
        """
        taken = [seq_id for seq_id in range(len(self.held)) if seq_id not in self._free]
        if not self._can_cut or not taken or taken[-1] - taken[0] < len(taken):
            return []
        loss = {seq_id: age if self.held[seq_id] else 0 for age, seq_id in enumerate(self._free, 1)}

        def cost(places: range) -> tuple[int, int]:
            losses = [loss[place] for place in places if place in loss]
            return len(losses), sum(losses)

        starts = range(len(self.held) - len(taken) + 1)
        best = min((range(start, start + len(taken)) for start in starts), key=cost)
        outside = [seq_id for seq_id in taken if seq_id not in best]
        holes = [place for place in best if place in loss]
        moves = [Move(*pair) for pair in zip(outside, holes, strict=True)]
        for source, target in moves:
            self.held[target] = self.held[source][:]
            self._coming[target] = self._coming.pop(source)
            del self._free[target]
            self._free[source] = None
        return moves

    def _is_beside(self, seq_id: int) -> bool:
        """Return True if the sequence before or after this one has a job."""
        return any(0 <= one < len(self.held) and one not in self._free for one in (seq_id - 1, seq_id + 1))

    def _reusable(self, source: int, prompt: npt.NDArray[np.int32], most: int) -> int:
        held = np.frombuffer(self.held[source], np.int32) if self.held[source] else np.zeros(0, np.int32)
        num_shared = shared_prefix(held, prompt)
        is_whole = 0 < num_shared == len(held) <= most
        if is_whole:
            return num_shared
        num_shared = min(num_shared, most)
        return num_shared if self._can_cut and num_shared >= WORTHWHILE else 0

    def _from(self, source: int, num_shared: int, oldest: int) -> Placement:
        """Place a prompt on its source sequence if that is free and loses little by it, else on a copy."""
        loses_little = len(self.held[source]) - num_shared < WORTHWHILE or oldest == source
        if source in self._free and (loses_little or not self._can_cut):
            return Placement(source, source, num_shared)
        return Placement(oldest if oldest != source else source, source, num_shared)

    def extend(self, seq_id: int, ids: Sequence[int]) -> None:
        """Add `ids` to the contents of `seq_id`."""
        self.held[seq_id].extend(ids)

    def forget(self, seq_id: int) -> None:
        """Mark the cache of `seq_id` as empty."""
        self.held[seq_id] = array("i")

    def release(self, seq_id: int) -> None:
        """Free `seq_id` after its job; its contents stay cached until another job overwrites them."""
        self._free[seq_id] = None
        self._coming.pop(seq_id, None)


def shared_prefix(left: npt.NDArray[np.int32], right: npt.NDArray[np.int32]) -> int:
    """Return the length of the common prefix of two id arrays."""
    size = min(len(left), len(right))
    different = np.flatnonzero(left[:size] != right[:size])
    return int(different[0]) if len(different) else size
