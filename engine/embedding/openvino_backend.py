"""Backend OpenVINO: the only module that imports it, except `export`."""

from collections.abc import Sequence

import numpy as np
import openvino

from engine.embedding.backends import Tokens
from engine.embedding.exports import open_export
from engine.embedding.texts import padded
from engine.errors import ConfigError
from engine.step_parts import Floats


class OpenVinoBackend:
    """Backend for an exported model, compiled by each worker for itself, as OpenVINO's threads do not survive a fork.

    is_bf16: arithmetic in bfloat16; otherwise float32 is requested explicitly, as OpenVINO uses bfloat16 by default
    where the processor supports it. Raises ConfigError where bfloat16 is requested and not supported.
    """

    def __init__(self, folder: str, exports: str, *, is_bf16: bool) -> None:
        self._export = open_export(folder, exports, "openvino")
        self._precision = "bf16" if is_bf16 else "f32"
        if is_bf16 and "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise ConfigError("backend = 'openvino-bf16': this processor has no bfloat16. Choose 'openvino'.")
        self.dim, reader = self._export.dim, self._export.reader
        self.max_tokens, self.num_vocab = reader.max_tokens, reader.num_vocab
        self._run: openvino.CompiledModel | None = None

    def begin(self, threads: int) -> None:
        """Compile the model; called once in each worker, before its first texts."""
        options = {
            "INFERENCE_PRECISION_HINT": self._precision,
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,
        }
        self._run = openvino.Core().compile_model(self._export.file, "CPU", options)

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """Tokenise texts, truncating each to max_tokens ids."""
        return self._export.reader.read(texts)

    def embed(self, ids: Sequence[Sequence[int]]) -> Floats:
        """Return vectors of a batch padded to its longest text, float32 (n, dim)."""
        assert self._run is not None
        rows, mask = padded(ids, self._export.pad)
        vectors: Floats = np.asarray(self._run([rows, mask])[0], np.float32)
        return vectors
