"""Exported forms of embedding models for other backends: made once, in a child process, and stored by model hash."""

import json
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from engine.embedding.texts import TextReader
from engine.errors import EngineError, ModelError
from engine.files import read_regular, scratch_folder
from engine.process.program import Program

FILES = {"onnx": "model.onnx", "onnx-int8": "model.onnx", "openvino": "model.xml"}
"""Forms, each with the file to open in its folder; the first also has the tokenizer and the ABOUT file."""

TOKENIZER, ABOUT = "tokenizer.json", "about.json"


class Export(NamedTuple):
    """Exported form of a model on disk: the file to open, the text reader, padding token id and vector dimension."""

    file: Path
    reader: TextReader
    pad: int
    dim: int


def open_export(folder: str, exports: str, form: str) -> Export:
    """Open a form of the model in `folder`, stored below `exports`; the first call exports it, which takes seconds.

    Raises ModelError where it cannot be made or read.
    """
    file = Path(exports, form, FILES[form])
    if not file.is_file():
        _make(folder, exports, form)
    base = Path(exports, "onnx")
    try:
        about = json.loads(read_regular(base / ABOUT))
        reader = TextReader(Tokenizer.from_file(str(base / TOKENIZER)), int(about["max_tokens"]))
        return Export(file, reader, int(about["pad"]), int(about["dim"]))
    except Exception as error:  # tokenizers raises no narrower exception
        raise ModelError(
            f"{base}: the exported model is damaged ({error}): delete this folder, then try again"
        ) from None


def _make(folder: str, exports: str, form: str) -> None:
    """Export the form in a child program, which ends with this process and writes into a folder that is removed."""
    try:
        Path(exports).mkdir(parents=True, exist_ok=True)
        with scratch_folder(Path(exports), "export") as making:
            words = folder, exports, form, str(making)
            with closing(Program("engine.embedding.export", *words, does="exports the model")) as program:
                program.ask(None, about=folder)
    except OSError as error:
        raise ModelError(f"{folder}: cannot be exported as {form}: {error}. Choose another backend.") from error
    except EngineError as error:
        raise ModelError(f"{error}. Choose another backend.") from error
