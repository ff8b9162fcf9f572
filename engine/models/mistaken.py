"""Checks for mistaken model paths: repositories, URLs, folders and other formats, with advice for each."""

import os
import re
from pathlib import Path

from engine.errors import ModelError
from engine.files import expanded_path
from engine.models.folders import CONFIG

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_URL = re.compile(r"[a-z][a-z0-9+]*:/", re.IGNORECASE)
_HUB = re.compile(r"(?:https?|hf)://?(?:huggingface\.co/|hf\.co/)?([\w.-]+/[\w.-]+)", re.IGNORECASE)
_OTHER_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".pkl", ".h5", ".npz")
_MOST_NAMES = 5


def check_is_model(model: str | Path) -> None:
    """Raise ModelError where the path can be neither a GGUF file nor a model folder by its name or kind, with advice.

    Raises ConfigError where it cannot be a path at all.
    """
    given, path = str(model), expanded_path(model)
    if _URL.match(given):
        address = _HUB.match(given)
        raise ModelError(
            f"{given}: is a URL, not a file. Download the model first: "
            f"python -m engine models get {address[1] if address else 'OWNER/NAME'}; it prints the file's path."
        )
    if os.path.isdir(path):
        if (path / CONFIG).is_file():
            return  # read_folder says what is wrong with it
        raise ModelError(f"{given}: is a folder; give the GGUF file itself. {_inside(path)}")
    if path.suffix.lower() == ".safetensors":
        raise ModelError(f"{given}: is one file of a model; give the folder that it lies in, with its {CONFIG}.")
    if path.suffix.lower() in _OTHER_WEIGHTS:
        raise ModelError(f"{given}: is neither a GGUF file nor a folder of safetensors. {_CONVERT}")
    if not os.path.exists(path) and _REPOSITORY.fullmatch(given) and path.suffix.lower() != ".gguf":
        raise ModelError(
            f"{given}: there is no such file. If it is a Hugging Face repository, download a GGUF file from it: "
            f"python -m engine models get {given}; it prints the file's path."
        )


_CONVERT = (
    "Get the same model as GGUF (python -m engine models get OWNER/NAME-GGUF), or convert its folder with llama.cpp's "
    "convert_hf_to_gguf.py."
)


def _inside(folder: Path) -> str:
    """Describe the model files in a folder, for the error message."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        return f"It cannot be read: {error}."
    models = [name for name in names if name.lower().endswith(".gguf")]
    if models:
        more = f" and {len(models) - _MOST_NAMES:,} more" if len(models) > _MOST_NAMES else ""
        return f"It contains {', '.join(models[:_MOST_NAMES])}{more}."
    if any(name.lower().endswith(_OTHER_WEIGHTS) for name in names):
        return f"Its weights are in another format. {_CONVERT}"
    return "It has no GGUF file."
