"""Quantisations of a model: the possible types with their sizes, and which files hold the same model."""

import contextlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from engine.errors import ConfigError
from engine.files import open_regular
from engine.models.ggml import FILE_TYPES, TYPES_BY_NAME
from engine.models.gguf import ModelFile
from engine.models.header import FIRST_PART_NAME
from engine.models.imatrix import read_imatrix
from engine.models.quantise_program import QuantiseProgram, matrix_options
from engine.runs import quantisation_in

TYPES = {name: number for number, name in FILE_TYPES.items() if name != "NVFP4"}
"""File types that llama.cpp can make, with their numbers (llama-quant.cpp, llama_ftype_get_default_type)."""

_OF_EXPERTS = "MXFP4_MOE"
_FOR_TRAINED = ("TQ1_0", "TQ2_0", "Q1_0", "Q2_0")
_LAST_NORM = "output_norm.weight"
_ALIGNMENT = 32
FLOATS = ("F32", "F16", "BF16")


class Offer(NamedTuple):
    """Result of quantising a model to one type, predicted with llama.cpp's own choice of a type for each tensor.

    num_bytes: of the file, exact except for some bytes of its header; bits_per_weight: over all tensors, including
    those that keep their type. refusal: why it is not possible, empty when it is. remark: a caution. Sizes are 0 where
    llama.cpp cannot do it at all.
    """

    name: str
    num_bytes: int
    bits_per_weight: float
    refusal: str = ""
    remark: str = ""


def check_is_file(source: ModelFile) -> None:
    """Raise ConfigError for a folder, which llama.cpp's quantiser does not read."""
    if source.is_folder:
        raise ConfigError(
            f"{source.path.name}: is a folder of safetensors; only GGUF files are quantised. Convert it first, with "
            "llama.cpp's convert_hf_to_gguf.py"
        )


def offers(source: ModelFile, *, imatrix: str | Path | None = None, may_requantise: bool = False) -> tuple[Offer, ...]:
    """Return an offer for every type that this model may be quantised to, largest first; those without a size last.

    imatrix: file of an importance matrix. may_requantise: see QuantiseJob. Takes up to some seconds where the
    vocabulary is large, since llama.cpp is queried for each type, in its own process. Raises ModelError for an
    importance matrix that cannot be used, ConfigError for a folder, WorkerDied.
    """
    check_is_file(source)
    matrix = Path(imatrix) if imatrix else None
    options = matrix_options(matrix, read_imatrix(matrix, source) if matrix else ())
    has_experts = source.whole("expert_count") > 0
    with contextlib.closing(QuantiseProgram()) as program:
        made = [
            offer_of(source, name, program.quantise(source.path, number, **options), may_requantise)
            for name, number in TYPES.items()
            if has_experts or name != _OF_EXPERTS
        ]
    return tuple(sorted(made, key=lambda offer: -offer.num_bytes))


def target_path(source: ModelFile, type_name: str, folder: str | Path | None = None) -> Path:
    """Return the path for a quantisation of a model: named after it, in `folder` (None: the folder of the model).

    The quantisation in its name is replaced by the new one; a name without one gets it appended.
    """
    name = FIRST_PART_NAME.sub("", source.path.name).removesuffix(".gguf")
    old = quantisation_in(name)
    new = re.sub(re.escape(old), type_name, name, count=1, flags=re.IGNORECASE) if old else f"{name}-{type_name}"
    return Path(folder or source.path.parent, f"{new}.gguf")


def offer_of(source: ModelFile, name: str, answer: Mapping[str, Any], may_requantise: bool) -> Offer:
    """Return the offer for one type, from the answer of QuantiseProgram without a target."""
    if "failure" in answer:
        return Offer(name, 0, 0.0, answer["failure"])
    types: Mapping[str, str] = answer["types"]
    sizes = [
        TYPES_BY_NAME.get(types.get(tensor.name, "").upper(), tensor.type).size_of(tensor.num_values)
        for tensor in source.tensors
    ]
    header = source.tensors[0].offset
    num_bytes = header + sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
    remark = "only for models trained in this type; others become useless" if name in _FOR_TRAINED else ""
    refusal = _refusal(source, answer, may_requantise)
    return Offer(name, num_bytes, 8 * sum(sizes) / max(source.num_parameters, 1), refusal, remark)


def _refusal(source: ModelFile, answer: Mapping[str, Any], may_requantise: bool) -> str:
    if not answer["types"]:
        return "the model already has this type"
    if answer["needs_imatrix"]:
        return "it needs an importance matrix of this model; give its file"
    is_again = any(tensor.name in answer["types"] and tensor.type.name not in FLOATS for tensor in source.tensors)
    if is_again and not may_requantise:
        return (
            f"already quantised ({source.quantisation}): use the original, or allow quantising again (--again on the "
            "command line), which loses more of its quality"
        )
    return ""


def variants(source: ModelFile, files: Iterable[ModelFile]) -> tuple[ModelFile, ...]:
    """Return `source`, followed by those of `files` that hold the same model in other quantisations, largest first."""
    mark = _mark(source)
    others = [file for file in files if file.path != source.path and _mark(file) == mark]
    return (source, *sorted(others, key=lambda file: -file.size))


def _mark(file: ModelFile) -> tuple[object, ...]:
    """Return a key shared by all quantisations of a model: its dimensions, and a vector that quantisation leaves as is.

    Where the vector cannot be read, the model's name is used instead.
    """
    dimensions = (file.architecture, file.n_layer, file.n_embd, file.n_ff, file.n_head, file.n_head_kv, file.n_vocab)
    norm = next((tensor for tensor in file.tensors if tensor.name == _LAST_NORM), None)
    if norm is None or norm.type.name != "F32" or file.parts > 1:
        return (*dimensions, file.name)
    with contextlib.suppress(OSError), open_regular(file.path) as opened:
        opened.seek(norm.offset)
        return (*dimensions, opened.read(norm.num_bytes))
    return (*dimensions, file.name)
