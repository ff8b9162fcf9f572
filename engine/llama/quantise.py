"""Child program that quantises models, one `Job` per request.

A job without a target is a dry run: it reads no weights and only reports which type each tensor would get.
"""

import contextlib
import ctypes
import os
import re
import select
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from engine.llama.library import start_backend
from engine.process.parent_death import outlive_parent
from engine.process.serving import serve

_CHANGED = re.compile(r"^\[ *+\d++/ *+\d++\] (.{1,64}?) +- \[[^\]\n]*+\][^>\n]*+> [^(\n]*+\((\w++)\)$", re.MULTILINE)
_FAILED = "failed to quantize: "
_WITHOUT_IMATRIX = "will require an imatrix"

_SLAB_BYTES = 64 << 20
"""Bytes of weights in memory at once, and the increments by which the target file grows."""

_LONGEST_VALUE = 127
_HANG_UP = getattr(select, "POLLRDHUP", select.POLLHUP)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Job:
    """Quantisation job for one model file; file_type is a number of enum llama_ftype.

    target: file to write, empty for a dry run. imatrix: file of an importance matrix, empty for none. importances: for
    each tensor in it the name, position in bytes, number of values, and counts: the values divide into as many equal
    parts, each of sums over that many samples.
    """

    source: str
    file_type: int
    target: str = ""
    threads: int = 1
    may_requantise: bool = False
    imatrix: str = ""
    importances: list[tuple[str, int, int, list[float]]] = field(default_factory=list)


class Quantiser:
    """Runs jobs sequentially. `writing`: the target file of the current job, empty if nothing is being written."""

    def __init__(self) -> None:
        self.writing = ""
        self._said: list[str] = []
        self._log = llama.llama_log_callback(self._hear)
        start_backend()
        llama.llama_log_set(self._log, ctypes.c_void_p(0))

    def answer(self, job: Job) -> dict[str, Any]:
        """Run a job and return its result.

        `types`: new type of each tensor whose type changes, by name, reported only in a dry run; `needs_imatrix`:
        whether it requires an importance matrix. On failure only `failure`: llama.cpp's reason.
        """
        self._said.clear()
        params = llama.llama_model_quantize_default_params()
        params.ftype = job.file_type
        params.nthread = job.threads
        params.allow_requantize = job.may_requantise
        params.dry_run = not job.target
        params.max_buf_size = _SLAB_BYTES
        importances = [(name.encode(), values) for name, values in _importances(job)]
        if importances:
            params.imatrix, params.kv_overrides = _table(importances), _overrides(job)
        self.writing = job.target
        source, target = os.fsencode(job.source), os.fsencode(job.target)
        code = llama.llama_model_quantize(source, target, ctypes.byref(params))
        self.writing = ""
        said = "".join(self._said)
        if code:
            return {"failure": said.rpartition(_FAILED)[2].strip() or f"llama_model_quantize returned {code}"}
        return {"types": dict(_CHANGED.findall(said)), "needs_imatrix": _WITHOUT_IMATRIX in said}

    def _hear(self, _level: int, text: bytes, _user_data: Any) -> None:
        self._said.append(text.decode("utf-8", "replace"))


def _importances(job: Job) -> Iterator[tuple[str, Floats]]:
    """Yield for each tensor the mean square of the activations that multiply each column; 1 where the count is 0."""
    for name, position, num_values, counts in job.importances:
        sums = np.fromfile(job.imatrix, "<f4", num_values, offset=position).reshape(len(counts), -1)
        over = np.array(counts, np.float32)[:, np.newaxis]
        yield name, np.where(over > 0, sums / np.maximum(over, 1), 1).astype(np.float32).ravel()


def _table(importances: list[tuple[bytes, Floats]]) -> Any:
    """Return the importances as llama.cpp's array, terminated by an empty entry; valid as long as `importances` is."""
    table = (llama.llama_model_imatrix_data * (len(importances) + 1))()
    for entry, (name, values) in zip(table, importances, strict=False):
        entry.name = name
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        entry.size = len(values)
    return table


def _overrides(job: Job) -> Any:
    """Return the target's metadata about its importance matrix, with the keys of llama.cpp's own quantize.cpp."""
    overrides: Any = (llama.llama_model_kv_override * 3)()  # the last one, empty, terminates the array
    overrides[0].key, overrides[1].key = b"quantize.imatrix.file", b"quantize.imatrix.entries_count"
    overrides[0].tag, overrides[1].tag = llama.LLAMA_KV_OVERRIDE_TYPE_STR, llama.LLAMA_KV_OVERRIDE_TYPE_INT
    name = os.path.basename(job.imatrix).encode("utf-8", "replace")[:_LONGEST_VALUE]
    overrides[0].value.val_str = name.decode("utf-8", "ignore").encode()
    overrides[1].value.val_i64 = len(job.importances)
    return overrides


def main(end: socket.socket) -> None:
    """Run jobs sequentially; exit as soon as the parent hangs up, deleting an unfinished target."""
    outlive_parent()
    quantiser = Quantiser()
    threading.Thread(target=_end_with_parent, args=(end, quantiser), daemon=True).start()
    serve(end, Job, quantiser.answer)


def _end_with_parent(end: socket.socket, quantiser: Quantiser) -> None:
    hang_up = select.poll()
    hang_up.register(end, _HANG_UP)
    hang_up.poll()
    with contextlib.suppress(OSError):
        os.unlink(quantiser.writing)
    os._exit(0)
