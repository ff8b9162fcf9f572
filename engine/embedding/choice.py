"""Choice of the backend "auto": saved measurements of each backend's speed and quality for a model on this machine."""

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
from engine.files import decoded_msgpack, read_regular, write_private
from engine.jsonable import figure
from engine.machine.cores import cpu_name, num_cores

LOSSLESS = 0.9999
"""Minimum cosine to the float32 vectors at which "auto" may choose another backend instead."""

NOT_YET = "not measured yet"
_VERSIONED = ("torch", "transformers", "sentence-transformers", "onnxruntime", "openvino", "llama-cpp-python")


class BackendSpeed(msgspec.Struct, frozen=True):
    """Measured speed of one backend. speedup: speed relative to the reference, median over rounds, NaN without one.

    memory_bytes: PSS of its processes after the texts, NaN where the system does not report it. reason: why there are
    no figures, empty where there are.
    """

    name: str
    texts_per_s: float = math.nan
    tokens_per_s: float = math.nan
    speedup: float = math.nan
    memory_bytes: float = math.nan
    agreement: Agreement = NOT_COMPARED
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values by name, for JSON: None where not measured."""
        values = {name: figure(getattr(self, name)) for name in self.__struct_fields__ if name != "agreement"}
        return values | {name: figure(value) for name, value in self.agreement._asdict().items()}


class Measurement(msgspec.Struct, frozen=True):
    """Measurement of all usable backends for one model: `num_rounds` rounds of `num_texts` texts.

    measured: its time (ISO 8601).
    """

    model: str
    measured: str
    num_texts: int
    num_rounds: int
    backends: tuple[BackendSpeed, ...]

    def fastest(self, worst_cosine: float = LOSSLESS) -> str | None:
        """Return the fastest backend whose vectors all have at least this cosine to the reference; None if none has."""
        near = [found for found in self.backends if found.agreement.worst_cosine >= worst_cosine]
        return max(near, key=lambda found: found.speedup).name if near else None


def chosen_backend(model: EmbeddingModel) -> str:
    """Return the backend that "auto" means: the fastest measured lossless one that is still usable, else the default.

    The default is torch in float32 for a folder, llama for a GGUF file, whether installed or not.
    """
    first, *others = _readers(model)
    return auto_backend(model, kept_measurement(model)) if others else first


def auto_backend(model: EmbeddingModel, measured: Measurement | None) -> str:
    """Return the backend that "auto" means, given the result of `kept_measurement`."""
    fastest = measured.fastest() if measured else None
    return fastest if fastest is not None and fastest in usable(model) else _readers(model)[0]


def backend_table(model: EmbeddingModel, measured: Measurement | None) -> list[BackendSpeed]:
    """Return every backend that reads models of this kind, with its figures, or the reason why there are none."""
    figures = {found.name: found for found in measured.backends} if measured else {}
    reasons = dict(available(model))
    return [figures.get(name) or BackendSpeed(name, reason=reasons[name] or NOT_YET) for name in _readers(model)]


def _readers(model: EmbeddingModel) -> list[str]:
    """Return the backends for a model of this kind, installed or not; for a GGUF file there is only one."""
    return [kind.name for kind in KINDS if kind.is_gguf == model.is_gguf]


def kept_measurement(model: EmbeddingModel) -> Measurement | None:
    """Return the saved measurement of this model on this machine with these library versions; None if there is none."""
    try:
        return decoded_msgpack(read_regular(_store(model)), Measurement)
    except (OSError, ValueError):
        return None


def keep_measurement(model: EmbeddingModel, measurement: Measurement) -> None:
    """Save a measurement for `kept_measurement`; a folder that cannot be written is ignored."""
    store = _store(model)
    with contextlib.suppress(OSError):
        write_private(store, msgspec.msgpack.encode(measurement))


def _store(model: EmbeddingModel) -> Path:
    return model.kept_in() / f"backends-{_machine_hash()}.msgpack"


def _machine_hash() -> str:
    """Return 16 hexadecimal digits, the same for the same processor, number of cores and library versions."""
    versions = {}
    for name in _VERSIONED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    about = json.dumps([cpu_name(), num_cores(), versions], sort_keys=True)
    return hashlib.sha256(about.encode()).hexdigest()[:16]
