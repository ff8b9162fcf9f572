"""Vectors by ONNX Runtime: the only place that imports it, but for `export`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from engine.embedding.backends import Tokens
from engine.embedding.exports import open_export
from engine.embedding.texts import padded
from engine.errors import ModelError
from engine.results import Floats

_FATAL = 4


class OnnxBackend:
    """An exported model; is_int8: weights in 8 bits, and activations brought to 8 bits batch by batch.

    A session of one thread starts none, so it is opened before the workers part and they share its weights; a session
    of several is opened by each worker for itself.
    """

    def __init__(self, folder: str, exports: str, threads: int, *, is_int8: bool) -> None:
        self._export = open_export(folder, exports, "onnx-int8" if is_int8 else "onnx")
        self.dim, self.max_tokens = self._export.dim, self._export.reader.max_tokens
        self._session = _session(self._export.file, 1) if threads == 1 else None

    def begin(self, threads: int) -> None:
        """Called once in each worker, before its first texts."""
        if self._session is None:
            self._session = _session(self._export.file, threads)

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """Texts as ids, at most max_tokens of each."""
        return self._export.reader.read(texts)

    def embed(self, ids: Sequence[Sequence[int]]) -> Floats:
        """Vectors of texts that are padded to the longest of them, float32 (n, dim)."""
        assert self._session is not None
        rows, mask = padded(ids, self._export.pad)
        (found,) = self._session.run(None, {"input_ids": rows, "attention_mask": mask})
        vectors: Floats = np.asarray(found, np.float32)
        return vectors


def _session(file: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = _FATAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own exceptions have no public base
        raise ModelError(
            f"{file}: ONNX Runtime cannot open it ({str(error)[:300]}): delete its folder, then try again"
        ) from error
