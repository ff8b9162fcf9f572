"""Which backend is fastest here for a model, and what it costs in quality: what was measured, and what "auto" reads."""

import contextlib
import hashlib
import json
import math
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from engine.embedding.agreement import NOT_COMPARED, Agreement
from engine.embedding.backends import KINDS, available, usable
from engine.embedding.models import EmbeddingModel
from engine.jsonable import figure
from engine.pool.placement import cpu_name, num_cores
from engine.private_files import write_private

LOSSLESS = 0.9999
"""The least cosine to the vectors of float32 at which another backend stands in for it unasked."""

NOT_YET = "not measured yet"
_VERSIONED = ("torch", "transformers", "sentence-transformers", "onnxruntime", "openvino", "llama-cpp-python")


class BackendSpeed(msgspec.Struct, frozen=True):
    """One backend. speedup: its speed over the reference's, median of the rounds, NaN where there is no reference.

    memory_bytes: PSS of its processes after the texts, NaN where the system does not tell. reason: why there are no
    figures, empty where there are.
    """

    name: str
    texts_per_s: float = math.nan
    tokens_per_s: float = math.nan
    speedup: float = math.nan
    memory_bytes: float = math.nan
    agreement: Agreement = NOT_COMPARED
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name, for JSON: None for what was not measured."""
        values = {name: figure(getattr(self, name)) for name in self.__struct_fields__ if name != "agreement"}
        return values | {name: figure(value) for name, value in self.agreement._asdict().items()}


class Measurement(msgspec.Struct, frozen=True):
    """All backends that could be used for one model; `measured` is when (ISO 8601), in how many rounds of how many
    texts."""

    model: str
    measured: str
    num_texts: int
    num_rounds: int
    backends: tuple[BackendSpeed, ...]

    def fastest(self, worst_cosine: float = LOSSLESS) -> str | None:
        """The fastest backend whose every vector has at least this cosine to the reference; None where none has."""
        near = [found for found in self.backends if found.agreement.worst_cosine >= worst_cosine]
        return max(near, key=lambda found: found.speedup).name if near else None


def chosen_backend(model: EmbeddingModel) -> str:
    """What "auto" stands for: the fastest without loss that was measured here and still can be used, else the first.

    The first is torch in float32 for a folder, llama for a GGUF file, whether installed or not.
    """
    first, *others = _readers(model)
    return auto_backend(model, kept_measurement(model)) if others else first


def auto_backend(model: EmbeddingModel, measured: Measurement | None) -> str:
    """As chosen_backend, by what `kept_measurement` gave."""
    fastest = measured.fastest() if measured else None
    return fastest if fastest is not None and fastest in usable(model) else _readers(model)[0]


def backend_table(model: EmbeddingModel, measured: Measurement | None) -> list[BackendSpeed]:
    """Every backend that reads a model of this kind, with its figures, or the reason why there are none."""
    figures = {found.name: found for found in measured.backends} if measured else {}
    reasons = dict(available(model))
    return [figures.get(name) or BackendSpeed(name, reason=reasons[name] or NOT_YET) for name in _readers(model)]


def _readers(model: EmbeddingModel) -> list[str]:
    """Backends for a model of this kind, installed or not; of a GGUF file only one, whatever was measured."""
    return [kind.name for kind in KINDS if kind.is_gguf == model.is_gguf]


def kept_measurement(model: EmbeddingModel) -> Measurement | None:
    """What was measured of this model on this machine with these libraries; None where nothing was."""
    try:
        return msgspec.msgpack.decode(_store(model).read_bytes(), type=Measurement)
    except (OSError, msgspec.MsgspecError):
        return None


def keep_measurement(model: EmbeddingModel, measurement: Measurement) -> None:
    """Have it read by the next one who asks; a folder that cannot be written costs only that."""
    store = _store(model)
    with contextlib.suppress(OSError):
        write_private(store, msgspec.msgpack.encode(measurement))


def _store(model: EmbeddingModel) -> Path:
    return model.kept_in() / f"backends-{_machine_hash()}.msgpack"


def _machine_hash() -> str:
    """16 hexadecimal digits, the same for the same processor, number of cores, and versions of the libraries."""
    versions = {}
    for name in _VERSIONED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    about = json.dumps([cpu_name(), num_cores(), versions], sort_keys=True)
    return hashlib.sha256(about.encode()).hexdigest()[:16]
