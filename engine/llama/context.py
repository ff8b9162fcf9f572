"""KV cache and compute buffers of one model: batches in, rows of logits out, sequences copied and cut."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from engine.errors import ModelError
from engine.llama.library import GGML_TYPES, view
from engine.llama.model import Model
from engine.specs import PoolSpec

SCORED_ROWS = 32
"""Prompt rows with logits in one decode: at a 152k vocabulary 32 rows are 19 MB."""

OK, NO_SLOT = 0, 1


class Chunk(NamedTuple):
    """Tokens of one sequence in a batch: ids (n,), the first position, how many of the last rows want logits."""

    sequence: int
    ids: Sequence[int]
    position: int
    num_rows: int


class Context:
    """One llama_context with a KV stream for each sequence. Not for use from several threads at once.

    Raises ModelError when llama.cpp cannot make it, most often for want of memory.
    """

    def __init__(self, model: Model, spec: PoolSpec, threads: int, threads_batch: int) -> None:
        params = llama.llama_context_default_params()
        params.n_ctx = spec.padded_n_ctx * spec.parallel
        params.n_batch = spec.resolved_n_batch
        params.n_ubatch = min(spec.resolved_n_ubatch, spec.resolved_n_batch)
        params.n_seq_max = spec.parallel
        params.n_outputs_max = min(spec.resolved_n_batch, spec.parallel + SCORED_ROWS)
        params.n_threads, params.n_threads_batch = threads, threads_batch
        params.kv_unified = False
        params.no_perf = True
        params.type_k, params.type_v = GGML_TYPES[spec.type_k], GGML_TYPES[spec.type_v]
        if spec.flash_attn is not None:
            params.flash_attn_type = int(spec.flash_attn)
        handle = llama.llama_init_from_model(model.handle, params)
        if not handle:
            raise ModelError(
                f"{model.path}: llama.cpp could not make a context of {spec.parallel} x {spec.padded_n_ctx:,} tokens "
                f"with {spec.type_k} keys and {spec.type_v} values; fewer sequences or a shorter context may fit"
            )
        self.handle = handle
        self.model = model
        self.memory = llama.llama_get_memory(handle)
        self.n_ctx: int = llama.llama_n_ctx_seq(handle)
        self._make_batch(params.n_batch)
        self._rows_at = (0, 0)

    def _make_batch(self, n_batch: int) -> None:
        """A batch over arrays of our own, so that filling it is a slice assignment."""
        self._token = np.zeros(n_batch, np.int32)
        self._pos = np.zeros(n_batch, np.int32)
        self._logits = np.zeros(n_batch, np.int8)
        self._num_seq = np.ones(n_batch, np.int32)
        self._seq = np.zeros(n_batch, np.int32)
        addresses = self._seq.ctypes.data + 4 * np.arange(n_batch, dtype=np.uintp)
        self._seq_pointers = addresses.astype(np.uintp)
        self._batch = llama.llama_batch(
            n_tokens=0,
            token=ctypes.cast(self._token.ctypes.data, ctypes.POINTER(llama.llama_token)),
            embd=None,
            pos=ctypes.cast(self._pos.ctypes.data, ctypes.POINTER(llama.llama_pos)),
            n_seq_id=ctypes.cast(self._num_seq.ctypes.data, ctypes.POINTER(ctypes.c_int32)),
            seq_id=ctypes.cast(self._seq_pointers.ctypes.data, ctypes.POINTER(ctypes.POINTER(llama.llama_seq_id))),
            logits=ctypes.cast(self._logits.ctypes.data, ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, chunks: Sequence[Chunk]) -> int:
        """Put the chunks into the batch; returns the number of rows that will have logits."""
        end = 0
        num_rows = 0
        for sequence, ids, position, rows in chunks:
            start, end = end, end + len(ids)
            if end - start == 1:
                self._token[start], self._pos[start] = ids[0], position
                self._seq[start], self._logits[start] = sequence, rows
            else:
                self._token[start:end] = ids
                self._pos[start:end] = np.arange(position, position + end - start)
                self._seq[start:end] = sequence
                self._logits[start:end] = 0
                self._logits[end - rows : end] = 1
            num_rows += rows
        self._batch.n_tokens = end
        return num_rows

    def decode(self) -> int:
        """Run the filled batch; returns llama_decode's code."""
        code: int = llama.llama_decode(self.handle, self._batch)
        return code

    def logits(self, num_rows: int) -> npt.NDArray[np.float32]:
        """Logits of the rows that asked for them, in batch order, shape (num_rows, vocab); gone at the next decode."""
        address = ctypes.addressof(llama.llama_get_logits(self.handle).contents)
        if (address, num_rows) != self._rows_at:
            self._rows_at = (address, num_rows)
            self._rows = view(address, (num_rows, self.model.num_vocab), np.float32)
        return self._rows

    def copy(self, source: int, target: int) -> None:
        """Make `target` an exact copy of `source`."""
        llama.llama_memory_seq_rm(self.memory, target, -1, -1)
        llama.llama_memory_seq_cp(self.memory, source, target, -1, -1)

    def cut(self, sequence: int, length: int) -> bool:
        """Forget all but the first `length` positions; False (and all forgotten) where the model cannot do that."""
        if llama.llama_memory_seq_rm(self.memory, sequence, length, -1):
            return True
        llama.llama_memory_seq_rm(self.memory, sequence, -1, -1)
        return False

    def close(self) -> None:
        """Free cache and buffers."""
        llama.llama_free(self.handle)
