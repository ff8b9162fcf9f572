"""A child program that quantises models, a `Job` a request.

Without a target it reads no weights and only says which type each tensor would get.
"""

import contextlib
import ctypes
import os
import re
import select
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from engine.llama.library import start_backend
from engine.process.serving import serve

_CHANGED = re.compile(r"^\[ *+\d++/ *+\d++\] (.{1,64}?) +- \[[^\]\n]*+\][^>\n]*+> [^(\n]*+\((\w++)\)$", re.MULTILINE)
_FAILED = "failed to quantize: "
_WITHOUT_IMATRIX = "will require an imatrix"

_SLAB_BYTES = 64 << 20
"""Weights in memory at once, and by how much the target grows."""

_LONGEST_TOLD = 127
_HANG_UP = getattr(select, "POLLRDHUP", select.POLLHUP)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Job:
    """A model file, and what shall become of it: file_type is a number of enum llama_ftype.

    target: file to write, empty for none. imatrix: file of an importance matrix, empty for none; importances: what it
    has of each tensor: name, position in bytes, number of values, and the counts that equal parts of them are sums
    over.
    """

    source: str
    file_type: int
    target: str = ""
    threads: int = 1
    may_requantise: bool = False
    imatrix: str = ""
    importances: list[tuple[str, int, int, list[float]]] = field(default_factory=list)


class Quantiser:
    """Does one job after the other. `writing`: the target of the one being done, empty where nothing is written."""

    def __init__(self) -> None:
        self.writing = ""
        self._said: list[str] = []
        self._log = llama.llama_log_callback(self._hear)
        start_backend()
        llama.llama_log_set(self._log, ctypes.c_void_p(0))

    def answer(self, job: Job) -> dict[str, Any]:
        """`types`: new type of each tensor that changes it, by name, told only where nothing is written; and whether
        it cannot be done without an importance matrix. Or `failure`: llama.cpp's reason."""
        self._said.clear()
        params = llama.llama_model_quantize_default_params()
        params.ftype = job.file_type
        params.nthread = job.threads
        params.allow_requantize = job.may_requantise
        params.dry_run = not job.target
        params.max_buf_size = _SLAB_BYTES
        importances = [(name.encode(), values) for name, values in _importances(job)]
        if importances:
            params.imatrix, params.kv_overrides = _table(importances), _told(job)
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
    """Mean square of what each column of a tensor is multiplied with; 1 for all columns where nothing was counted."""
    for name, position, num_values, counts in job.importances:
        sums = np.fromfile(job.imatrix, "<f4", num_values, offset=position).reshape(len(counts), -1)
        over = np.array(counts, np.float32)[:, np.newaxis]
        yield name, np.where(over > 0, sums / np.maximum(over, 1), 1).astype(np.float32).ravel()


def _table(importances: list[tuple[bytes, Floats]]) -> Any:
    """The importances as llama.cpp takes them, ended by an empty entry; valid as long as they are."""
    table = (llama.llama_model_imatrix_data * (len(importances) + 1))()
    for entry, (name, values) in zip(table, importances, strict=False):
        entry.name = name
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        entry.size = len(values)
    return table


def _told(job: Job) -> Any:
    """What the target says of its importance matrix, under the keys of llama.cpp's own program (quantize.cpp)."""
    told: Any = (llama.llama_model_kv_override * 3)()  # the last one, empty, ends them
    told[0].key, told[1].key = b"quantize.imatrix.file", b"quantize.imatrix.entries_count"
    told[0].tag, told[1].tag = llama.LLAMA_KV_OVERRIDE_TYPE_STR, llama.LLAMA_KV_OVERRIDE_TYPE_INT
    name = os.path.basename(job.imatrix).encode("utf-8", "replace")[:_LONGEST_TOLD]
    told[0].value.val_str = name.decode("utf-8", "ignore").encode()
    told[1].value.val_i64 = len(job.importances)
    return told


def main(end: socket.socket) -> None:
    """Do one job after the other; end at once when the parent hangs up, and leave no target behind."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # the parent's death is seen below
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
