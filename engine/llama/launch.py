"""What every program that this one starts finds in its environment, and what its log says when it ended."""

import os
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).resolve().parents[2]
_LOG_TAIL = 2000


def environment_for(build: str = "") -> dict[str, str]:
    """This process's environment, with the package to be found and crashes that end at once.

    build: folder of the llama.cpp libraries to load, empty for those of the Python package.
    """
    environment = os.environ | {
        "GGML_NO_BACKTRACE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH")))),
    }
    return environment | {"LLAMA_CPP_LIB_PATH": build} if build else environment


def log_tail(log: IO[Any]) -> str:
    """The end of an open log as the end of a sentence; empty where nothing was written."""
    size = os.fstat(log.fileno()).st_size
    words = os.pread(log.fileno(), _LOG_TAIL, max(0, size - _LOG_TAIL)).decode("utf-8", "replace").strip()
    return f"; the end of its log:\n{words}" if words else ""
