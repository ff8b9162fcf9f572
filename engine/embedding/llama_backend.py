"""Backend llama.cpp: vectors from any GGUF embedding model."""

from collections.abc import Sequence

import numpy as np

from engine.embedding.backends import Tokens
from engine.llama.embedder import Embedder
from engine.llama.model import Model
from engine.specs import PoolSpec
from engine.step_parts import Floats

MOST_TOKENS = 8_192
"""Maximum tokens of one text, whatever context the model was trained with: attention over all of it takes memory."""


class LlamaBackend:
    """Backend for one GGUF file; its weights, repacked for this processor, are shared by the workers."""

    def __init__(self, path: str, tokens_per_batch: int) -> None:
        self._model = Model(path, PoolSpec())
        self._tokens_per_batch = tokens_per_batch
        self._threads = 1
        self.max_tokens, self.num_vocab = min(self._model.n_ctx_train, MOST_TOKENS), self._model.num_vocab
        tried = Embedder(self._model, 1, num_tokens=1)  # fails early where this is not an embedding model
        self.dim = tried.dim
        tried.close()
        self._embedder: Embedder | None = None

    def begin(self, threads: int) -> None:
        """Set the number of threads; called once in each worker, before its first texts."""
        self._threads = threads

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """Tokenise texts; one that is too long is truncated, retaining its final special token."""
        ids = [self._model.tokenize(text) for text in texts]
        most = self.max_tokens
        cut = [place for place, row in enumerate(ids) if len(row) > most]
        for place in cut:
            row = ids[place]
            ids[place] = [*row[: most - 1], row[-1]] if self._model.is_control(row[-1]) else row[:most]
        return Tokens(ids, cut)

    def embed(self, ids: Sequence[Sequence[int]]) -> Floats:
        """Return vectors, float32 (n, dim); nothing is padded."""
        embedder = self._embedder_for(sum(len(row) for row in ids))
        most = embedder.num_texts
        vectors: Floats = np.concatenate(
            [embedder.embed(ids[start : start + most]) for start in range(0, len(ids), most)]
        )
        return vectors

    def _embedder_for(self, num_tokens: int) -> Embedder:
        """Return the context, recreated with the size of two, four… batches where a text is longer than any before."""
        if self._embedder is not None:
            if self._embedder.num_tokens >= num_tokens:
                return self._embedder
            self._embedder.close()
            self._embedder = None
        room = self._tokens_per_batch
        while room < num_tokens:
            room *= 2
        self._embedder = Embedder(self._model, self._threads, room)
        return self._embedder
