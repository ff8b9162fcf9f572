"""Models in forms that other backends read: made once, by a program of their own, and kept by the model's hash."""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from engine.embedding.texts import TextReader
from engine.errors import ModelError

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
    """Run the program that makes it; it ends with this one, when its standard input is closed."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "engine.embedding.export", folder, exports, form],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        said = program.stdout.read().strip()
        status = program.wait()
    if status:
        how = said or f"the program that does it ended with status {status}"
        raise ModelError(f"{folder}: cannot be brought into the form {form}: {how}. Choose another backend.")
