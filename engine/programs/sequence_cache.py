"""KV cache of a transformers model with a place for each sequence, so that sequences of any lengths share a batch.

transformers' own caches hold one batch whose sequences grow together; here each step names its sequences and where in
each of them its tokens begin.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class Step(NamedTuple):
    """Sequences of a step: their numbers (b,), the positions (b, t) of their `num_tokens` new tokens each, and the
    length of the longest afterwards.

    rows: the same numbers as an index into the cache; a slice, which copies nothing, where they are contiguous.
    """

    seq_ids: torch.Tensor
    positions: torch.Tensor
    num_tokens: int
    length: int
    rows: slice | torch.Tensor


def step_of(seq_ids: Sequence[int], starts: Sequence[int], num_tokens: int) -> Step:
    """Return the step that adds `num_tokens` tokens to each sequence, from the position in `starts` on."""
    numbers = torch.tensor(seq_ids)
    positions = torch.tensor(starts)[:, None] + torch.arange(num_tokens)
    first, last = seq_ids[0], seq_ids[-1]
    is_contiguous = list(seq_ids) == list(range(first, last + 1))
    return Step(
        numbers, positions, num_tokens, max(starts) + num_tokens, slice(first, last + 1) if is_contiguous else numbers
    )


def mask_of(step: Step, dtype: torch.dtype, window: int = 0) -> torch.Tensor:
    """Return what is added to the attention scores (b, 1, t, length): nothing up to each token's own position.

    window: how many tokens each one sees, itself included; 0: all before it.
    """
    places, own = torch.arange(step.length), step.positions[:, None, :, None]
    is_seen = places <= own
    if window:
        is_seen &= places > own - window
    mask = torch.zeros(is_seen.shape, dtype=dtype)
    return mask.masked_fill_(~is_seen, torch.finfo(dtype).min)


class SequenceLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers has no types here
    """Keys and values of one layer, (sequences, heads, n_ctx, width), allocated with the first step."""

    is_sliding = False

    def __init__(self, owner: "SequenceCache") -> None:
        super().__init__()
        self._owner = owner

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate, with the heads, widths and type of these states."""
        shape = self._owner.num_sequences, self._owner.n_ctx
        self.keys, self.values = (
            torch.zeros(shape[0], states.shape[1], shape[1], states.shape[3], dtype=states.dtype)
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the states of the step (b, heads, t, width); return those of its sequences, up to its length."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        step = self._owner.step
        for kept, new in ((self.keys, key_states), (self.values, value_states)):
            kept[step.seq_ids[:, None], :, step.positions] = new.transpose(1, 2)
        return self.keys[step.rows, :, : step.length], self.values[step.rows, :, : step.length]

    def get_seq_length(self) -> int:
        """Tokens before the step; positions and mask of each sequence are given to the network instead."""
        return self._owner.step.length - self._owner.step.num_tokens

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the mask."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """Tokens that a sequence holds."""
        return self._owner.n_ctx


class SequenceCache(Cache):  # type: ignore[misc]  # transformers has no types here
    """Cache of all layers. step: of the batch that is computed next."""

    def __init__(self, num_layers: int, num_sequences: int, n_ctx: int) -> None:
        self.num_sequences, self.n_ctx = num_sequences, n_ctx
        self.step = step_of([0], [0], 1)
        super().__init__(layers=[SequenceLayer(self) for _ in range(num_layers)])

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of a sequence to another one.

        Some networks have layers that use the keys and values of another one, and have none of their own.
        """
        for layer in (layer for layer in self.layers if layer.is_initialized):
            for kept in (layer.keys, layer.values):
                kept[target, :, :length] = kept[source, :, :length]
