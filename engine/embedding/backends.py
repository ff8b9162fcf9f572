"""Embedding backends: their kinds, their availability on this machine, and loading one in the fork server.

Only the fork server (`engine.embedding.worker`) imports the libraries of a backend.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import NamedTuple, Protocol

from engine.embedding.messages import LoadEmbeddingModel
from engine.embedding.models import TORCH_PACKAGES, EmbeddingModel
from engine.errors import ConfigError
from engine.step_parts import Floats


class Tokens(NamedTuple):
    """Token ids of each text as the model takes them, special tokens included. cut: indices of truncated texts."""

    ids: list[list[int]]
    cut: list[int]


class Backend(Protocol):
    """Loaded model of a backend. Loaded before the workers are forked, and used only in the workers.

    num_vocab: token ids are below it.
    """

    dim: int
    max_tokens: int
    num_vocab: int

    def begin(self, threads: int) -> None:
        """Prepare a worker; called once in each, before its first texts."""

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """Tokenise texts, truncating each to max_tokens ids."""

    def embed(self, ids: Sequence[Sequence[int]]) -> Floats:
        """Return vectors of texts computed as one batch, float32 (n, dim), not normalised unless the model does so."""


_EXPORTER = "onnx"
_EXPORT = (*TORCH_PACKAGES, _EXPORTER)


@dataclass(frozen=True)
class BackendKind:
    """Description of a backend and its requirements.

    packages: required packages, by their names for pip. is_gguf: it reads GGUF files; all others read folders of
    sentence-transformers. is_exported: it reads a form that is first exported from the folder.
    """

    name: str
    about: str
    packages: tuple[str, ...]
    is_gguf: bool = False

    @property
    def is_exported(self) -> bool:
        return _EXPORTER in self.packages


KINDS = (
    BackendKind("torch", "PyTorch in float32, the reference for the others", TORCH_PACKAGES),
    BackendKind("torch-bf16", "PyTorch in bfloat16: half the memory traffic, 8 bits of precision", TORCH_PACKAGES),
    BackendKind("onnx", "ONNX Runtime in float32", (*_EXPORT, "onnxruntime")),
    BackendKind("onnx-int8", "ONNX Runtime with 8-bit weights and activations", (*_EXPORT, "onnxruntime")),
    BackendKind("openvino", "OpenVINO in float32", (*_EXPORT, "openvino")),
    BackendKind("openvino-bf16", "OpenVINO in bfloat16", (*_EXPORT, "openvino")),
    BackendKind("llama", "llama.cpp, pooling as the file's metadata specifies", ("llama-cpp-python",), is_gguf=True),
)
_IMPORTED_AS = {"llama-cpp-python": "llama_cpp"}


def kind_named(name: str) -> BackendKind:
    """Return the backend of this name."""
    return next(kind for kind in KINDS if kind.name == name)


class Availability(NamedTuple):
    """Name of a backend, and why it cannot be used: packages missing or wrong kind of model; empty where it can."""

    name: str
    reason: str


def available(model: EmbeddingModel | None = None) -> list[Availability]:
    """Return all backends in the order of KINDS, each with the reason why it cannot be used (for `model`), if any."""
    return [Availability(kind.name, _reason(kind, model)) for kind in KINDS]


def usable(model: EmbeddingModel) -> list[str]:
    """Return the names of the backends that can compute this model on this machine."""
    return [name for name, reason in available(model) if not reason]


def check_usable(name: str, model: EmbeddingModel) -> None:
    """Raise ConfigError, saying what to do, unless this backend can compute this model on this machine."""
    reason = _reason(kind_named(name), model)
    if reason:
        raise ConfigError(f"backend = {name!r}: {reason}. Or choose another backend.")


def _reason(kind: BackendKind, model: EmbeddingModel | None) -> str:
    if model is not None and model.is_gguf and not kind.is_gguf:
        return "it cannot read GGUF files: choose the model's folder"
    if model is not None and kind.is_gguf and not model.is_gguf:
        return "it reads only GGUF files, and this model is a folder: choose a GGUF file of the model"
    missing = [name for name in kind.packages if find_spec(_IMPORTED_AS.get(name, name.replace("-", "_"))) is None]
    return f"{' and '.join(missing)} not installed: run `pip install {' '.join(missing)}`" if missing else ""


def open_backend(load: LoadEmbeddingModel) -> Backend:
    """Load the model of a load message. Raises ModelError, or ConfigError where the backend is not installed."""
    is_reduced = load.backend.endswith(("-bf16", "-int8"))
    try:
        match load.backend.partition("-")[0]:
            case "torch":
                from engine.embedding.torch_backend import TorchBackend

                return TorchBackend(load.path, is_bf16=is_reduced)
            case "onnx":
                from engine.embedding.onnx_backend import OnnxBackend

                return OnnxBackend(load.path, load.exports, load.threads, is_int8=is_reduced)
            case "openvino":
                from engine.embedding.openvino_backend import OpenVinoBackend

                return OpenVinoBackend(load.path, load.exports, is_bf16=is_reduced)
            case "llama":
                from engine.embedding.llama_backend import LlamaBackend

                return LlamaBackend(load.path, load.tokens_per_batch)
    except ImportError as error:
        raise ConfigError(
            f"backend = {load.backend!r}: {error.name} cannot be imported ({error}). Install it again with pip, or "
            "choose another backend."
        ) from error
    raise ConfigError(f"backend = {load.backend!r}: is not known to this worker")
