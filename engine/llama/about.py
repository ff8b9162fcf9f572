"""A child program that reports version, compiler and features of llama.cpp's libraries.

A program of its own, since a process that has llama.cpp loaded cannot look at another build of it.
"""

import ctypes
import re
import socket
from contextlib import suppress
from pathlib import Path

import llama_cpp.llama_cpp as llama

from engine.process.serving import serve

_COMPILER = re.compile(rb"(GCC): \([^)\0]{0,100}\) ([\d.]+)|(clang) version ([\d.]+)")
"""A compiler's signature in an ELF file (section .comment). GCC's start files bring its own into every library."""


def about() -> dict[str, str]:
    """Versions of llama.cpp and ggml, the commit they were built from, the compiler of the part that computes on the
    processor (empty where the file does not say), and the instructions and features built in."""
    return {
        "llama": _text("llama_version"),
        "ggml": _text("ggml_version"),
        "commit": _text("ggml_commit"),
        "compiler": compiler_of(Path(llama._lib._name).with_name("libggml-cpu.so")),
        "features": llama.llama_print_system_info().decode("utf-8", "replace").strip(" |"),
    }


def compiler_of(library: Path) -> str:
    """Name and version of the compiler that made a library; empty where the file is missing or does not say."""
    with suppress(OSError):
        signed = _COMPILER.finditer(library.read_bytes())
        versions = {(match[1] or match[3]).decode(): (match[2] or match[4]).decode() for match in signed}
        for name in ("clang", "GCC"):
            if name in versions:
                return f"{name} {versions[name]}"
    return ""


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
