"""A child program that reports version and features of llama.cpp's libraries.

A program of its own, since a process that has llama.cpp loaded cannot look at another build of it.
"""

import ctypes
import socket

import llama_cpp.llama_cpp as llama

from engine.process.serving import serve


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


def main(end: socket.socket) -> None:
    """Answer the one request there is."""
    serve(end, None, lambda _request: about())
