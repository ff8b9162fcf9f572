"""Models in forms that other backends read: made once, by a program of their own, and kept by the model's hash."""

import json
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from engine.embedding.texts import TextReader
from engine.errors import EngineError, ModelError
from engine.process.program import Program

FILES = {"onnx": "model.onnx", "onnx-int8": "model.onnx", "openvino": "model.xml"}
"""The forms, each with the file to open in its folder; the first also has the tokenizer, and what ABOUT says."""

TOKENIZER, ABOUT = "tokenizer.json", "about.json"


class Export(NamedTuple):
    """One form of a model on disk: the file to open, how texts are read, and what the graph wants and gives."""

    file: Path
    reader: TextReader
    pad: int
    dim: int


def open_export(folder: str, exports: str, form: str) -> Export:
    """A form of the model in `folder`, kept below `exports`; the first time it is made, which takes some seconds.

    Raises ModelError where it cannot be made or read.
    """
    file = Path(exports, form, FILES[form])
    if not file.is_file():
        _make(folder, exports, form)
    base = Path(exports, "onnx")
    try:
        about = json.loads((base / ABOUT).read_bytes())
        reader = TextReader(Tokenizer.from_file(str(base / TOKENIZER)), int(about["max_tokens"]))
        return Export(file, reader, int(about["pad"]), int(about["dim"]))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ModelError(
            f"{base}: the exported model is damaged ({error}): delete this folder, then try again"
        ) from None


def _make(folder: str, exports: str, form: str) -> None:
    """Have a child program make it, which ends with this one."""
    program = Program("engine.embedding.export", folder, exports, form, does="exports the model")
    try:
        program.ask(None, about=folder)
    except EngineError as error:
        raise ModelError(f"{error}. Choose another backend.") from error
    finally:
        program.close()
