"""Build llama.cpp's own programs from the source distribution of the pinned llama-cpp-python: `make peers`.

They are the yardstick, so they come from the same llama.cpp with the same flags: a release build for this machine's
instruction set, shared libraries, and the CMAKE_ARGS, CFLAGS and CXXFLAGS of the environment, which `.ci/prepare` set
for the Python package too.
"""

import os
import sys
from pathlib import Path

from engine.bench.baselines.llama_bench_program import build_programs, built_program
from engine.errors import ProgramFailed

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("llama-bench", "llama-batched-bench", "llama-server")


def program(name: str) -> Path:
    """Path of one of llama.cpp's programs; exits with the remedy when it is not built."""
    path = built_program(name)
    if not path.is_file():
        sys.exit(f"{name} is not built yet: run `make peers` first (10 to 20 minutes on 2 cores).")
    return path


if __name__ == "__main__":
    jobs = int(os.environ.get("PEERS_JOBS", "") or len(os.sched_getaffinity(0)))
    try:
        build_programs(PROGRAMS, jobs)
    except ProgramFailed as error:
        sys.exit(str(error))
    print("Built:", *(program(name).relative_to(ROOT) for name in PROGRAMS))
