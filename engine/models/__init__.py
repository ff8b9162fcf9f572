"""Model files: what they say about themselves, what memory they will need, which there are."""

from engine.models.gguf import ModelFile, read_model
from engine.models.identity import model_hash
from engine.models.library import BrokenFile, embedded_model, list_models, shipped
from engine.models.memory import MemoryEstimate, check_fits, estimate

__all__ = [
    "BrokenFile",
    "MemoryEstimate",
    "ModelFile",
    "check_fits",
    "embedded_model",
    "estimate",
    "list_models",
    "model_hash",
    "read_model",
    "shipped",
]
