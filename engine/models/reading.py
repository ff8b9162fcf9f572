"""Reading of a model's metadata, whatever its form: a GGUF file, or a folder of safetensors."""

import os
from pathlib import Path

from engine.models.folders import read_folder
from engine.models.gguf import ModelFile, read_gguf


def read_model(path: str | Path) -> ModelFile:
    """Read the headers of a model, without its weights.

    Raises ModelError naming file and reason where it is missing, damaged, truncated, or no language model that can be
    run.
    """
    path = Path(path)
    return read_folder(path) if os.path.isdir(path) else read_gguf(path)
