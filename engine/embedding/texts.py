"""Tokenisation for sentence-transformers folders, by their fast tokenizer, without PyTorch."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from engine.embedding.backends import Tokens

Ids = npt.NDArray[np.int64]


class TextReader:
    """Tokenizer with truncation to the model's maximum length. Not thread-safe. num_vocab: ids are below it."""

    def __init__(self, tokenizer: Tokenizer, max_tokens: int) -> None:
        self._tokenizer, self.max_tokens = tokenizer, max_tokens
        self.num_vocab: int = tokenizer.get_vocab_size()
        tokenizer.no_padding()
        tokenizer.no_truncation()

    def read(self, texts: Sequence[str]) -> Tokens:
        """Return the ids of each text; one that is too long is tokenised again, so that it keeps its special tokens."""
        ids = [found.ids for found in self._tokenizer.encode_batch_fast(list(texts))]
        long = [place for place, row in enumerate(ids) if len(row) > self.max_tokens]
        if long:
            self._tokenizer.enable_truncation(self.max_tokens)
            for place, found in zip(long, self._tokenizer.encode_batch_fast([texts[at] for at in long]), strict=True):
                ids[place] = found.ids
            self._tokenizer.no_truncation()
        return Tokens(ids, long)


def padded(ids: Sequence[Sequence[int]], pad: int) -> tuple[Ids, Ids]:
    """Return the ids of several texts as one array, right-padded with `pad`, and its mask, 1 where there is a token."""
    lengths = np.array([len(row) for row in ids])
    mask = np.arange(lengths.max()) < lengths[:, None]
    rows = np.full(mask.shape, pad, np.int64)
    rows[mask] = np.concatenate([np.asarray(row, np.int64) for row in ids])
    return rows, mask.astype(np.int64)
