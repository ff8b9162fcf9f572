"""Compiles the engine's kernel when the package is built or installed; hatchling calls it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "engine/llama/kernel.c"
LIBRARY = "engine/llama/_kernel.so"
FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-Wall", "-Wextra", "-Wno-psabi")
OPENMP = "-fopenmp"


class Kernel(BuildHookInterface[Any]):
    """Leaves the library beside its source, so that a checkout can be run as it lies there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into a file of its own first: programs that run keep the library they have."""
        root = Path(self.root)
        unfinished = root / f"{LIBRARY}.{os.getpid()}"
        flags = [*FLAGS, *os.environ.get("CFLAGS", "").split()]
        words = [_compiler(), *flags, "-o", str(unfinished), str(root / SOURCE), "-lm"]
        try:
            # Compilers without OpenMP, as macOS has one, make a kernel of one thread.
            if subprocess.run([*words, OPENMP], capture_output=True).returncode:
                subprocess.run([*words, "-Wno-unknown-pragmas"], check=True)
            unfinished.replace(root / LIBRARY)
        finally:
            unfinished.unlink(missing_ok=True)
        build_data["force_include"][str(root / LIBRARY)] = LIBRARY
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def _compiler() -> str:
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return name
    sys.exit("A C compiler was not found. On Debian and Ubuntu: sudo apt install build-essential")
