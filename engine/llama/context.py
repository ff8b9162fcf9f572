"""Inference context: KV cache and compute buffers of one model; decodes batches, copies and truncates sequences."""

import ctypes
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import llama_cpp.llama_cpp as llama
import numpy as np

from engine.errors import ModelError
from engine.llama.distribution import Row, row_of
from engine.llama.library import GGML_TYPES, quick, view
from engine.llama.model import Model
from engine.specs import PoolSpec

OK, NO_SLOT = 0, 1

_get_logits = quick(llama.llama_get_logits, ctypes.c_void_p, ctypes.c_void_p)


class Chunk(NamedTuple):
    """Tokens of one sequence in a batch: ids (n,), the first position, and for how many of the last ones to compute
    logits."""

    seq_id: int
    ids: Sequence[int]
    position: int
    num_rows: int


class Decoder(Protocol):
    """What decodes batches for a Runner: llama.cpp's Context, or another engine's.

    n_ctx: tokens that one sequence holds. The methods are documented at Context.
    """

    n_ctx: int

    def fill(self, chunks: Sequence[Chunk]) -> int: ...

    def decode(self) -> int: ...

    def set_threads(self, threads: int, threads_batch: int) -> None: ...

    def logits(self, num_rows: int) -> list[Row]: ...

    def copy(self, source: int, target: int) -> None: ...

    def cut(self, seq_id: int, length: int) -> bool: ...


class Batch:
    """A llama_batch of up to `size` tokens of any sequences, over arrays of our own, so that filling it is an
    assignment.

    struct: the argument of llama_decode.
    """

    def __init__(self, size: int) -> None:
        self._token, self._pos, self._seq = (array("i", bytes(4 * size)) for _ in range(3))
        self._num_seq = array("i", [1]) * size
        self._logits = array("b", bytes(size))
        first, _size = self._seq.buffer_info()
        self._seq_pointers = array("Q", range(first, first + 4 * size, 4))
        self.struct = llama.llama_batch(
            n_tokens=0,
            token=_pointer(self._token, llama.llama_token),
            embd=None,
            pos=_pointer(self._pos, llama.llama_pos),
            n_seq_id=_pointer(self._num_seq, ctypes.c_int32),
            seq_id=_pointer(self._seq_pointers, ctypes.POINTER(llama.llama_seq_id)),
            logits=_pointer(self._logits, ctypes.c_int8),
        )

    def fill(self, chunks: Sequence[Chunk]) -> int:
        """Replace the contents with the chunks; returns the number of rows that will have logits."""
        end = 0
        num_rows = 0
        for seq_id, ids, position, rows in chunks:
            start, end = end, end + len(ids)
            if end - start == 1:
                self._token[start], self._pos[start] = ids[0], position
                self._seq[start], self._logits[start] = seq_id, rows
            else:
                self._token[start:end] = array("i", ids)
                self._pos[start:end] = array("i", range(position, position + end - start))
                self._seq[start:end] = array("i", [seq_id]) * (end - start)
                self._logits[start:end] = array("b", bytes(end - start - rows) + b"\1" * rows)
            num_rows += rows
        self.struct.n_tokens = end
        return num_rows


class Context:
    """One llama_context with a KV stream for each sequence. Not thread-safe.

    Raises ModelError when llama.cpp cannot create it, most often for lack of memory.
    """

    def __init__(self, model: Model, spec: PoolSpec, threads: int, threads_batch: int) -> None:
        params = llama.llama_context_default_params()
        params.n_ctx = spec.padded_n_ctx * spec.parallel
        params.n_batch = spec.resolved_n_batch
        params.n_ubatch = min(spec.resolved_n_ubatch, spec.resolved_n_batch)
        params.n_seq_max = spec.parallel
        params.n_outputs_max = spec.most_rows(model.num_vocab)
        params.n_threads, params.n_threads_batch = threads, threads_batch
        params.kv_unified = False
        params.no_perf = True
        params.type_k, params.type_v = GGML_TYPES[spec.type_k], GGML_TYPES[spec.type_v]
        if spec.flash_attn is not None:
            params.flash_attn_type = int(spec.flash_attn)
        handle = llama.llama_init_from_model(model.handle, params)
        if not handle:
            raise ModelError(
                f"{model.path}: llama.cpp could not create a context of {spec.parallel} × {spec.padded_n_ctx:,} tokens "
                f"with {spec.type_k} keys and {spec.type_v} values; fewer sequences or a shorter context may fit"
            )
        self.handle = handle
        self.model = model
        self.memory = llama.llama_get_memory(handle)
        self.n_ctx: int = llama.llama_n_ctx_seq(handle)
        self._batch = Batch(params.n_batch)
        self._rows: list[Row] = []
        self._rows_at = 0

    def fill(self, chunks: Sequence[Chunk]) -> int:
        """Fill the batch with the chunks; returns the number of rows that will have logits."""
        return self._batch.fill(chunks)

    def decode(self) -> int:
        """Run llama_decode on the filled batch; returns its code."""
        code: int = llama.llama_decode(self.handle, self._batch.struct)
        return code

    def set_threads(self, threads: int, threads_batch: int) -> None:
        """Set the thread counts for batches of one token and for larger ones, from the next decode on."""
        llama.llama_set_n_threads(self.handle, threads, threads_batch)

    def logits(self, num_rows: int) -> list[Row]:
        """Return the requested rows of logits in batch order; valid until the next decode."""
        address = _get_logits(self.handle)
        if address != self._rows_at or num_rows > len(self._rows):
            self._rows_at = address
            self._rows = list(map(row_of, view(address, (num_rows, self.model.num_vocab), np.float32)))
        return self._rows[:num_rows]

    def copy(self, source: int, target: int) -> None:
        """Make `target` an exact copy of `source`."""
        llama.llama_memory_seq_rm(self.memory, target, -1, -1)
        llama.llama_memory_seq_cp(self.memory, source, target, -1, -1)

    def cut(self, seq_id: int, length: int) -> bool:
        """Drop all but the first `length` positions; returns False, with all dropped, if the model cannot do that."""
        if llama.llama_memory_seq_rm(self.memory, seq_id, length, -1):
            return True
        llama.llama_memory_seq_rm(self.memory, seq_id, -1, -1)
        return False

    def close(self) -> None:
        """Free the KV cache and buffers."""
        llama.llama_free(self.handle)


def _pointer(values: "array[int]", kind: Any) -> Any:
    """Return a pointer of type `kind` to an array's memory; the array must outlive it and keep its size."""
    return ctypes.cast(values.buffer_info()[0], ctypes.POINTER(kind))
