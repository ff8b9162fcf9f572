"""Texts to vectors by a model with pooling: many sequences in one batch, one vector of each."""

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
"""Those that give a vector of a whole text; the one that ranks gives a score, and none gives a vector a token."""


class Embedder:
    """One context of `num_tokens` tokens a batch, pooled as the model's metadata says. For one thread at a time.

    Raises ModelError where there is no such pooling, or no room.
    """

    def __init__(self, model: Model, threads: int, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.num_texts = min(num_tokens, int(llama.llama_max_parallel_sequences()))
        params = llama.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = num_tokens  # what is pooled has to lie in one piece
        params.n_seq_max = self.num_texts
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = params.embeddings = params.no_perf = True
        handle = llama.llama_init_from_model(model.handle, params)
        if not handle:
            raise ModelError(f"{model.path}: llama.cpp could not make a context of {num_tokens:,} tokens")
        self._handle = handle
        self._memory = llama.llama_get_memory(handle)
        self._path = model.path
        self.dim = int(llama.llama_model_n_embd_out(model.handle))
        if llama.llama_pooling_type(handle) not in POOLINGS:
            self.close()
            raise ModelError(
                f"{model.path}: is no embedding model: its metadata names no pooling by which a text becomes one "
                "vector. Choose a GGUF file of an embedding model."
            )
        self._batch = Batch(num_tokens)

    def embed(self, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """Vectors (n, dim) of ids of up to `num_texts` texts, none empty, with at most `num_tokens` tokens in all."""
        self._batch.fill([Chunk(sequence, ids, 0, len(ids)) for sequence, ids in enumerate(texts)])
        if self._memory:
            llama.llama_memory_clear(self._memory, False)
        code = llama.llama_decode(self._handle, self._batch.struct)
        if code:
            raise ModelError(f"{self._path}: llama.cpp could not compute these texts (code {code})")
        return np.stack([self._pooled(sequence) for sequence in range(len(texts))])

    def _pooled(self, sequence: int) -> npt.NDArray[np.float32]:
        found = llama.llama_get_embeddings_seq(self._handle, sequence)
        return view(ctypes.addressof(found.contents), (self.dim,), np.float32).copy()

    def close(self) -> None:
        """Free its buffers."""
        llama.llama_free(self._handle)
