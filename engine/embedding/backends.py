"""Ways to compute the vectors of one batch; only a program of workers imports what is behind them."""

from collections.abc import Sequence
from typing import Protocol

from engine.embedding.messages import Load
from engine.errors import ConfigError
from engine.results import Floats


class Backend(Protocol):
    """A loaded model. It is loaded before the workers part from their program, and used only after that."""

    dim: int
    max_tokens: int

    def begin(self, threads: int) -> None:
        """Called once in each worker, before its first texts."""

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, all of them: also of one longer than max_tokens."""

    def embed(self, texts: Sequence[str]) -> Floats:
        """Vectors of texts that are computed together, float32 (n, dim), not normalised unless the model does that."""


def open_backend(load: Load) -> Backend:
    """Load the model as the message says. Raises ModelError, or ConfigError where the backend is not installed."""
    try:
        match load.backend:
            case "torch" | "torch-bf16":
                from engine.embedding.torch_backend import TorchBackend

                return TorchBackend(load.folder, is_bf16=load.backend == "torch-bf16")
    except ImportError as error:
        raise ConfigError(
            f"backend = {load.backend!r}: {error.name} is not installed. Run `pip install torch "
            "sentence-transformers`, or choose another backend."
        ) from error
    raise ConfigError(f"backend = {load.backend!r}: is not known to this worker")
