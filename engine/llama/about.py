"""What the llama.cpp libraries of this machine are: `python -m engine.llama.about` prints one line of JSON.

A program of its own, since a process that has llama.cpp loaded cannot look at another build of it.
"""

import ctypes
import json

import llama_cpp.llama_cpp as llama


def about() -> dict[str, str]:
    """Versions of llama.cpp and ggml, the commit they were built from, and the instructions and features built in."""
    return {
        "llama": _text("llama_version"),
        "ggml": _text("ggml_version"),
        "commit": _text("ggml_commit"),
        "features": llama.llama_print_system_info().decode("utf-8", "replace").strip(" |"),
    }


def _text(name: str) -> str:
    """What a function of the library without arguments says; empty where a build does not have it."""
    function = getattr(llama._lib, name, None)
    if function is None:
        return ""
    function.restype = ctypes.c_char_p
    return (function() or b"").decode("utf-8", "replace")


if __name__ == "__main__":
    print(json.dumps(about()))
