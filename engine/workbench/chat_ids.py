"""Token ids of a chat: what the model has read and generated is kept, however the template's text would be split."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.vocabulary import Vocabulary

_CONTROL = 256
"""Symbols from here on are control tokens; below are bytes."""


def with_known_ids(vocabulary: Vocabulary, known: Sequence[int], rendered: Sequence[int]) -> list[int]:
    """Return `rendered` with the tokens of `known` in place of its own, as far as both spell the same text.

    The template's text is tokenised as a whole, where an answer may be split otherwise than the model generated it: its
    own ids keep the cached prefix, and are what the model has read. The cut is at the last place where a token ends in
    both, so that the text is always that of `rendered`.
    """
    (own, own_ends), (other, other_ends) = _spelled(vocabulary, known), _spelled(vocabulary, rendered)
    length = min(len(own), len(other))
    parting = np.flatnonzero(own[:length] != other[:length])
    num_alike = int(parting[0]) if len(parting) else length
    common = np.intersect1d(own_ends[own_ends <= num_alike], other_ends[other_ends <= num_alike])
    cut = int(common[-1]) if len(common) else 0
    num_known, num_rendered = (int(np.searchsorted(ends, cut, "right")) for ends in (own_ends, other_ends))
    return [*known[:num_known], *rendered[num_rendered:]]


def _spelled(vocabulary: Vocabulary, ids: Sequence[int]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Return the symbols of tokens in a row, bytes or whole control tokens, and where each token ends."""
    parts = [(_CONTROL + id,) if vocabulary.is_control(id) else tuple(vocabulary.pieces[id]) for id in ids]
    symbols = np.fromiter((symbol for part in parts for symbol in part), np.int32)
    return symbols, np.cumsum([len(part) for part in parts], dtype=np.int64)
