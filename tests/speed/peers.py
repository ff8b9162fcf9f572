"""Build llama.cpp's own programs from the source distribution of the pinned llama-cpp-python: `make peers`.

They are the yardstick, so they come from the same llama.cpp with the same flags: a release build for this machine's
instruction set, shared libraries, and the CMAKE_ARGS, CFLAGS and CXXFLAGS of the environment, which `.ci/prepare` set
for the Python package too. The arithmetic is compiled a second time without those CXXFLAGS, as a person gets it who
follows llama.cpp's own instructions. `ways` has the environments in which the programs run in either way.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.bench.baselines.llama_bench_program import (
    FLAGS,
    build_programs,
    fetched_source,
)
from engine.errors import ProgramFailed
from engine.models.llama_programs import build_folder, built_program
from engine.process.child import huge_pages

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("llama-bench", "llama-batched-bench", "llama-server")


def program(name: str) -> Path:
    """Path of one of llama.cpp's programs; exits with the remedy when it is not built."""
    path = built_program(name)
    if not path.is_file():
        _exit_unbuilt(name)
    return path


def ways() -> dict[str, dict[str, str]]:
    """The environments of the two ways to run a program, by name: with arithmetic that the distribution's compiler made
    with no header of ours before it, and compiled as ours with weights in huge pages."""
    return {"as a person gets it": _plain_libraries(), "built and run as ours": huge_pages()}


def _plain_libraries() -> dict[str, str]:
    if not (_plain_folder() / "bin" / "libggml-cpu.so").is_file():
        _exit_unbuilt("libggml-cpu.so without .ci/llama.h")
    return {"LD_LIBRARY_PATH": str(_plain_folder() / "bin")}


def build_plain(num_jobs: int) -> None:
    """Compile llama.cpp's arithmetic for the CPU without CXXFLAGS."""
    plain = {name: value for name, value in os.environ.items() if name != "CXXFLAGS"}
    commands: tuple[Sequence[str | Path], ...] = (
        ["cmake", "-S", fetched_source(), "-B", _plain_folder(), *FLAGS],
        ["cmake", "--build", _plain_folder(), "--parallel", str(num_jobs), "--target", "ggml-cpu"],
    )
    with (build_folder() / "plain.log").open("w") as log:
        for words in commands:
            if subprocess.run(words, env=plain, stdout=log, stderr=subprocess.STDOUT, check=False).returncode:
                raise ProgramFailed(
                    f"llama.cpp's arithmetic could not be built; the compiler's words are in {log.name}"
                )


def _plain_folder() -> Path:
    return build_folder() / "plain"


def _exit_unbuilt(name: str) -> None:
    sys.exit(f"{name} is not built yet: run `make peers` first (10 to 20 minutes on 2 cores).")


if __name__ == "__main__":
    jobs = int(os.environ.get("PEERS_JOBS", "") or len(os.sched_getaffinity(0)))
    try:
        build_programs(PROGRAMS, jobs)
        build_plain(jobs)
    except ProgramFailed as error:
        sys.exit(str(error))
    print("Built:", *(program(name).relative_to(ROOT) for name in PROGRAMS), "and the arithmetic without .ci/llama.h")
