"""Text embedder: turns texts into vectors with a pooling model, many sequences per batch, one vector for each."""

import ctypes
from collections.abc import Sequence

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from engine.errors import ModelError
from engine.llama.context import Batch, Chunk
from engine.llama.library import view
from engine.llama.model import Model

POOLINGS = {llama.LLAMA_POOLING_TYPE_MEAN, llama.LLAMA_POOLING_TYPE_CLS, llama.LLAMA_POOLING_TYPE_LAST}
"""Pooling types that yield one vector per text; the one for ranking yields a score, and none a vector per token."""


class Embedder:
    """Embedding context with batches of `num_tokens` tokens, pooled as the model's metadata specifies. Not thread-safe.

    Raises ModelError if the model has no such pooling, or if the context does not fit in memory.
    """

    def __init__(self, model: Model, threads: int, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.num_texts = min(num_tokens, int(llama.llama_max_parallel_sequences()))
        params = llama.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = num_tokens  # pooling needs a whole text in one micro-batch
        params.n_seq_max = self.num_texts
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = params.embeddings = params.no_perf = True
        handle = llama.llama_init_from_model(model.handle, params)
        if not handle:
            raise ModelError(f"{model.path}: llama.cpp could not create a context of {num_tokens:,} tokens")
        self._handle = handle
        self._memory = llama.llama_get_memory(handle)
        self._path = model.path
        self.dim = int(llama.llama_model_n_embd_out(model.handle))
        if llama.llama_pooling_type(handle) not in POOLINGS:
            self.close()
            raise ModelError(
                f"{model.path}: is not an embedding model: its metadata specifies no pooling into one vector per "
                "text. Choose the GGUF file of an embedding model."
            )
        self._batch = Batch(num_tokens)

    def embed(self, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """Return vectors (n, dim) of up to `num_texts` texts, given as ids, none empty, at most `num_tokens` in all.

        Raises ModelError when llama_decode fails.
        """
        self._batch.fill([Chunk(seq_id, ids, 0, len(ids)) for seq_id, ids in enumerate(texts)])
        if self._memory:
            llama.llama_memory_clear(self._memory, False)
        code = llama.llama_decode(self._handle, self._batch.struct)
        if code:
            raise ModelError(f"{self._path}: llama.cpp could not compute these texts (code {code})")
        return np.stack([self._pooled(seq_id) for seq_id in range(len(texts))])

    def _pooled(self, seq_id: int) -> npt.NDArray[np.float32]:
        found = llama.llama_get_embeddings_seq(self._handle, seq_id)
        return view(ctypes.addressof(found.contents), (self.dim,), np.float32).copy()

    def close(self) -> None:
        """Free the context."""
        llama.llama_free(self._handle)
