"""Checks for mistaken model paths: repositories, URLs, folders and other formats, with advice for each."""

import re
from pathlib import Path

from engine.errors import ModelError

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_URL = re.compile(r"[a-z][a-z0-9+]*:/", re.IGNORECASE)
_HUB = re.compile(r"(?:https?|hf)://?(?:huggingface\.co/|hf\.co/)?([\w.-]+/[\w.-]+)", re.IGNORECASE)
_OTHER_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".pkl", ".h5", ".npz")
_MOST_NAMES = 5


def check_is_file(model: str | Path) -> None:
    """Raise ModelError where the path cannot be a GGUF file by its name or kind, saying how to get one."""
    given, path = str(model), Path(model).expanduser()
    if _URL.match(given):
        address = _HUB.match(given)
        raise ModelError(
            f"{given}: is an address, not a file. Fetch the model first: "
            f"python -m engine models get {address[1] if address else 'OWNER/NAME'}; it prints where the file lies."
        )
    if path.is_dir():
        raise ModelError(f"{given}: is a folder; name the GGUF file itself. {_inside(path)}")
    if path.suffix.lower() in _OTHER_WEIGHTS:
        raise ModelError(f"{given}: is no GGUF file, the only kind that llama.cpp loads. {_CONVERT}")
    if not path.exists() and _REPOSITORY.fullmatch(given) and path.suffix.lower() != ".gguf":
        raise ModelError(
            f"{given}: there is no such file. If it is a repository of Hugging Face, fetch a GGUF file of it: "
            f"python -m engine models get {given}; it prints where the file lies."
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
        return f"It cannot be looked into: {error}."
    models = [name for name in names if name.lower().endswith(".gguf")]
    if models:
        more = f" and {len(models) - _MOST_NAMES:,} more" if len(models) > _MOST_NAMES else ""
        return f"In it are {', '.join(models[:_MOST_NAMES])}{more}."
    if any(name.lower().endswith(_OTHER_WEIGHTS) for name in names):
        return f"Its weights are in another form. {_CONVERT}"
    return "It has no GGUF file."
