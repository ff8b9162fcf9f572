"""Child program that runs `llama_cpp.server`, the server of llama-cpp-python, with the parameters of a PoolSpec.

Its key is in the environment variable API_KEY. It chooses a free port itself.
"""

import os
import socket
import sys

import msgspec
from llama_cpp.server.__main__ import main as serve
from llama_cpp.server.settings import Settings

from engine.llama.library import GGML_TYPES
from engine.process.parent_death import end_with_socket
from engine.specs import PoolSpec

_KEY = "api_key"


def main(end: socket.socket, cores: str, model: str, spec_json: str) -> None:
    """Serve the model. cores: numbers with commas between them, "" for all; spec_json: a PoolSpec as JSON, with all
    threads decided."""
    os.setsid()  # Ctrl+C is for the workbench, which ends its children
    end_with_socket(end)
    if cores:
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    for name in list(os.environ):  # each of its settings is also read from the environment
        if name.lower() in {*Settings.model_fields, "config_file"} - {_KEY}:
            del os.environ[name]
    spec = PoolSpec.from_dict(msgspec.json.decode(spec_json))
    given = settings_of(spec, model)
    sys.argv = ["llama_cpp.server", *(str(word) for name, value in given.items() for word in (f"--{name}", value))]
    try:
        serve()  # type: ignore[no-untyped-call]
    except Exception as error:  # a model that llama.cpp has refused: the log says why before this line
        sys.exit(f"{type(error).__name__}: {error}")


def settings_of(spec: PoolSpec, model: str) -> dict[str, str | int | bool | None]:
    """Return a PoolSpec, with all threads decided, as settings of llama_cpp.server for the model at a path."""
    return {
        "model": model,
        "host": "127.0.0.1",
        "port": 0,
        "n_ctx": spec.padded_n_ctx,
        "n_batch": spec.resolved_n_batch,
        "n_ubatch": spec.resolved_n_ubatch,
        "n_threads": spec.threads,
        "n_threads_batch": spec.threads_batch,
        # it has no "auto", which would use flash attention wherever the backend supports it
        "flash_attn": spec.flash_attn is not False,
        "type_k": GGML_TYPES[spec.type_k],
        "type_v": GGML_TYPES[spec.type_v],
        "n_gpu_layers": spec.n_gpu_layers,
        "use_mmap": spec.load != "none",
        "use_mlock": spec.load == "mlock",
        "interrupt_requests": False,  # a second request would end the first
    }
