"""Backend ONNX Runtime: the only module that imports it, except `export`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from engine.embedding.backends import Tokens
from engine.embedding.exports import open_export
from engine.embedding.texts import padded
from engine.errors import ModelError
from engine.step_parts import Floats

_FATAL = 4


class OnnxBackend:
    """Backend for an exported model; is_int8: weights in 8 bits, and activations quantised to 8 bits batch by batch.

    A session with one thread starts no threads, so it is opened before the workers are forked, and they share its
    weights; a session with several threads is opened by each worker for itself.
    """

    def __init__(self, folder: str, exports: str, threads: int, *, is_int8: bool) -> None:
        self._export = open_export(folder, exports, "onnx-int8" if is_int8 else "onnx")
        self.dim, reader = self._export.dim, self._export.reader
        self.max_tokens, self.num_vocab = reader.max_tokens, reader.num_vocab
        self._session = _session(self._export.file, 1) if threads == 1 else None

    def begin(self, threads: int) -> None:
        """Open the session where it is not shared; called once in each worker, before its first texts."""
        if self._session is None:
            self._session = _session(self._export.file, threads)

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """Tokenise texts, truncating each to max_tokens ids."""
        return self._export.reader.read(texts)

    def embed(self, ids: Sequence[Sequence[int]]) -> Floats:
        """Return vectors of a batch padded to its longest text, float32 (n, dim)."""
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
    except Exception as error:  # the exceptions of ONNX Runtime have no public base class
        raise ModelError(
            f"{file}: ONNX Runtime cannot open it ({str(error)[:300]}): delete its folder, then try again"
        ) from error
