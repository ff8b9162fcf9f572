"""What every program that this one starts for llama.cpp finds in its environment."""

import os
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


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
