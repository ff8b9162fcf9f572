"""A model file as plain values: the line of a list, and all that is known of one model."""

import os
from pathlib import Path
from typing import Any

from engine.jsonable import figure
from engine.models.gguf import ModelFile
from engine.models.tensors import by_size, by_type


def readable(text: str | Path) -> str:
    """A name as text that can be shown and sent: bytes of a file name that are no UTF-8 stand as \\xff."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def facts(file: ModelFile) -> dict[str, Any]:
    """What a list says of a model; sizes in bytes."""
    return {
        "path": readable(file.path),
        "architecture": file.architecture,
        "size": file.size,
        "num_files": file.parts,
        "quantisation": file.quantisation,
        "num_parameters": file.num_parameters,
        "n_ctx_train": file.n_ctx_train,
        "n_vocab": file.n_vocab,
        "has_chat_template": bool(file.chat_template),
        "license": file.license,
        "is_synthetic": file.is_synthetic,
    }


def details(file: ModelFile) -> dict[str, Any]:
    """All that the header says, the tensors in groups; what has no end in JSON, such as an infinite number, by name."""
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
