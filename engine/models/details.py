"""Plain values of a model file: the row of a list, and all details of one model."""

import os
from pathlib import Path
from typing import Any

from engine.jsonable import figure
from engine.models.gguf import ModelFile
from engine.models.tensors import by_size, by_type


def readable(text: str | Path) -> str:
    """Return a name as valid text for display and transfer: bytes of a file name that are not UTF-8 appear as \\xff."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def facts(file: ModelFile) -> dict[str, Any]:
    """Return the facts of a model shown in lists; sizes in bytes."""
    return {
        "path": readable(file.path),
        "architecture": file.architecture,
        "size": file.size,
        "num_files": file.parts,
        "quantisation": file.quantisation,
        "engine": file.engine,
        "num_parameters": file.num_parameters,
        "n_ctx_train": file.n_ctx_train,
        "n_vocab": file.n_vocab,
        "has_chat_template": bool(file.chat_template),
        "license": file.license,
        "is_synthetic": file.is_synthetic,
    }


def details(file: ModelFile) -> dict[str, Any]:
    """Return all header values, with the tensors in groups; values that JSON lacks, such as infinity, by name."""
    return {
        "name": readable(file.name),
        **facts(file),
        "weights_bytes": file.weights_bytes,
        "n_embd": file.n_embd,
        "n_layer": file.n_layer,
        "n_ff": file.n_ff,
        "n_head": file.n_head,
        "n_head_kv": list(file.n_head_kv),
        "head_k": file.head_k,
        "head_v": file.head_v,
        "sliding_window": file.sliding_window,
        "tensors_by_type": [group.to_dict() for group in by_type(file)],
        "tensors_by_size": [group.to_dict() for group in by_size(file)],
        "metadata": {key: _plain(value) for key, value in file.metadata.items()},
    }


def _plain(value: Any) -> Any:
    return [_plain(one) for one in value] if isinstance(value, tuple) else figure(value)
