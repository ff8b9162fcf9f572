"""Child program that reports version, compiler and features of llama.cpp's libraries.

It is a separate program because a process that has llama.cpp loaded cannot inspect another build of it.
"""

import ctypes
import re
import socket
from contextlib import suppress
from pathlib import Path

import llama_cpp.llama_cpp as llama

from engine.process.serving import serve

_COMPILER = re.compile(rb"(GCC): \([^()\0]{0,100}\) ([\d.]+)|(clang) version ([\d.]+)")
"""A compiler's signature in an ELF file (section .comment). GCC's start files add GCC's signature to every library."""

_HEADER = re.compile(rb"Logitbench (llama\.h \d+)")
"""The signature of `.ci/llama.h`, which makes some products faster (docs/decisions/0008)."""


def about() -> dict[str, str]:
    """Return versions of llama.cpp and ggml, the commit they were built from, the compiler of the CPU backend (empty if
    its file does not name one), and the instruction sets and features built in."""
    return {
        "llama": _text("llama_version"),
        "ggml": _text("ggml_version"),
        "commit": _text("ggml_commit"),
        "compiler": compiler_of(Path(llama._lib._name).with_name("libggml-cpu.so")),
        "features": llama.llama_print_system_info().decode("utf-8", "replace").strip(" |"),
    }


def compiler_of(library: Path) -> str:
    """Return name and version of the compiler that built a library, and of `.ci/llama.h` if it was built with it; empty
    if the file is missing or names no compiler."""
    with suppress(OSError):
        content = library.read_bytes()
        signed = _COMPILER.finditer(content)
        versions = {(match[1] or match[3]).decode(): (match[2] or match[4]).decode() for match in signed}
        header = _HEADER.search(content)
        for name in ("clang", "GCC"):
            if name in versions:
                return f"{name} {versions[name]}{f' with {header[1].decode()}' if header else ''}"
    return ""


def _text(name: str) -> str:
    """Call a library function that takes no arguments and returns a text; empty if the build does not have it."""
    function = getattr(llama._lib, name, None)
    if function is None:
        return ""
    function.restype = ctypes.c_char_p
    return (function() or b"").decode("utf-8", "replace")


def main(end: socket.socket) -> None:
    """Answer requests, of which there is only one kind."""
    serve(end, None, lambda _request: about())
