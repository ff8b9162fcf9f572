"""Model files: their headers, memory estimates, and the library of models on this machine."""

from engine.models.details import details
from engine.models.gguf import ModelFile
from engine.models.identity import model_hash
from engine.models.library import (
    BrokenFile,
    LibraryEntry,
    embedded_model,
    find_model,
    list_models,
    read_library,
    shipped,
)
from engine.models.memory import MemoryEstimate, check_fits, estimate
from engine.models.places import Place, find_places
from engine.models.reading import read_model
from engine.models.tensors import TensorGroup, by_size, by_type

__all__ = [
    "BrokenFile",
    "LibraryEntry",
    "MemoryEstimate",
    "ModelFile",
    "Place",
    "TensorGroup",
    "by_size",
    "by_type",
    "check_fits",
    "details",
    "embedded_model",
    "estimate",
    "find_model",
    "find_places",
    "list_models",
    "model_hash",
    "read_library",
    "read_model",
    "shipped",
]
