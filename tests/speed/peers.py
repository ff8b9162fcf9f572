"""Build llama.cpp's own programs from the source distribution of the pinned llama-cpp-python: `make peers`.

They are the yardstick, so they come from the same llama.cpp with the same flags: a release build for this machine's
instruction set, shared libraries, and the CMAKE_ARGS, CFLAGS and CXXFLAGS of the environment, which `.ci/prepare` set
for the Python package too.
"""

import os
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".cache" / "peers"
PROGRAMS = ("llama-bench", "llama-batched-bench", "llama-server")
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    # Nothing but these three programs: no web page in the server, no downloads, no encryption.
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)


def program(name: str) -> Path:
    """Path of one of llama.cpp's programs; exits with the remedy when it is not built."""
    path = FOLDER / "build" / "bin" / name
    if not path.is_file():
        sys.exit(f"{name} is not built yet: run `make peers` first (10 to 20 minutes on 2 cores).")
    return path


def pinned() -> str:
    """The requirement as pinned, for instance llama-cpp-python==1.2.3."""
    line = re.search(r"^llama-cpp-python==\S+", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    if line is None:
        sys.exit("requirements.txt pins no llama-cpp-python: there is nothing to compare with.")
    return line.group()


def fetch(requirement: str) -> Path:
    """llama.cpp's source folder, downloaded and unpacked if need be."""
    stamp = FOLDER / "source" / "requirement.txt"
    if not stamp.is_file() or stamp.read_text() != requirement:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
        source = ["--no-deps", "--no-binary", "llama-cpp-python", "--dest", FOLDER, requirement]
        subprocess.run([*pip, *source], check=True)
        version = requirement.partition("==")[2]
        with tarfile.open(FOLDER / f"llama_cpp_python-{version}.tar.gz") as archive:
            archive.extractall(FOLDER / "source", filter="data")
        stamp.write_text(requirement)
    return next((FOLDER / "source").glob("*/vendor/llama.cpp"))


def build(source: Path, num_jobs: int) -> None:
    """Compile what is not compiled yet; the compiler's words go to build.log."""
    target = FOLDER / "build"
    extra = shlex.split(os.environ.get("CMAKE_ARGS", ""))
    commands = (
        ["cmake", "-S", source, "-B", target, *FLAGS, *extra],
        ["cmake", "--build", target, "--parallel", str(num_jobs), "--target", *PROGRAMS],
    )
    log = FOLDER / "build.log"
    with log.open("w") as file:
        for command in commands:
            if subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode:
                sys.exit(f"llama.cpp's programs could not be built; the reason is at the end of {log}.")


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    jobs = int(os.environ.get("PEERS_JOBS", "") or len(os.sched_getaffinity(0)))
    build(fetch(pinned()), jobs)
    print("Built:", *(program(name).relative_to(ROOT) for name in PROGRAMS))
