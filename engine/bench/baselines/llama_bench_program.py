"""llama-bench program of llama.cpp, and others: built from the installed llama-cpp-python's source."""

import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from collections import deque
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from engine.errors import ProgramFailed
from engine.machine.cores import num_cores
from engine.models.llama_programs import build_folder, built_program

PROGRAM = "llama-bench"
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    # No web page in the server, no downloads, no encryption: only the requested programs.
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)
CORE_MINUTES = 7
"""Minutes of one core that compiling llama-bench took on the reference machine, rounded up."""

_DISTRIBUTION = "llama-cpp-python"
_PERCENT = re.compile(rb"\[ *(\d+)%\]")
_LAST_WORDS = 12

Progress = Callable[[float], object]


def build_minutes() -> int:
    """Return the approximate minutes that build_llama_bench takes on the cores of this machine."""
    return math.ceil(CORE_MINUTES / num_cores()) + 1


def build_llama_bench(on_progress: Progress = lambda _fraction: None) -> Path:
    """Download the source and compile llama-bench. Raises ProgramFailed.

    `on_progress` gets 0 to 1; an exception that it raises kills the compiler, and the files compiled by then are reused
    the next time.
    """
    build_programs((PROGRAM,), num_cores(), on_progress)
    return built_program(PROGRAM)


def build_programs(names: Sequence[str], num_jobs: int, on_progress: Progress = lambda _fraction: None) -> None:
    """Compile those of llama.cpp's programs that are not compiled yet, `num_jobs` files at a time.

    A release build for this machine with the CMAKE_ARGS, CFLAGS and CXXFLAGS of the environment; the compiler's output
    goes to build.log. Raises ProgramFailed.
    """
    if shutil.which("cmake") is None:
        raise ProgramFailed("CMake, which builds llama.cpp's programs, was not found: install it, then try again")
    try:
        _build(names, num_jobs, on_progress)
    except (OSError, tarfile.TarError) as error:
        raise ProgramFailed(f"llama.cpp's programs could not be built in {build_folder()}: {error}") from error


def _build(names: Sequence[str], num_jobs: int, on_progress: Progress) -> None:
    source, target = fetched_source(), build_folder() / "build"
    extra = shlex.split(os.environ.get("CMAKE_ARGS", ""))
    commands: tuple[Sequence[str | Path], ...] = (
        ["cmake", "-S", source, "-B", target, *FLAGS, *extra],
        ["cmake", "--build", target, "--parallel", str(num_jobs), "--target", *names],
    )
    log = build_folder() / "build.log"
    with log.open("wb") as file:
        for command in commands:
            _run(command, file.write, on_progress, log)
    on_progress(1.0)


def fetched_source() -> Path:
    """Return llama.cpp's source folder, downloaded and unpacked if necessary."""
    requirement = f"{_DISTRIBUTION}=={version(_DISTRIBUTION)}"
    folder = build_folder()
    stamp = folder / "source" / "requirement.txt"
    if not stamp.is_file() or stamp.read_text() != requirement:
        folder.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
        _run([*words, "--no-binary", _DISTRIBUTION, "--dest", folder, requirement])
        name = f"{_DISTRIBUTION.replace('-', '_')}-{version(_DISTRIBUTION)}.tar.gz"
        with tarfile.open(folder / name) as archive:
            archive.extractall(folder / "source", filter="data")
        stamp.write_text(requirement)
    found = next((folder / "source").glob("*/vendor/llama.cpp"), None)
    if found is None:
        raise ProgramFailed(
            f"{requirement} as downloaded to {folder} does not contain llama.cpp: delete that folder, then try again"
        )
    return found


def _run(
    command: Sequence[str | Path],
    keep: Callable[[bytes], object] = lambda _line: None,
    on_progress: Progress = lambda _fraction: None,
    log: Path | None = None,
) -> None:
    """Run a program, passing its output to `keep` by line; raises ProgramFailed with the last lines if it fails."""
    # Git must not mistake the commit of a checkout that contains the source for llama.cpp's commit.
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(build_folder())}
    last: deque[bytes] = deque(maxlen=_LAST_WORDS)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                keep(line)
                last.append(line)
                if match := _PERCENT.match(line):
                    on_progress(int(match[1]) / 100)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        words = b"".join(last).decode("utf-8", "replace").strip()
        where = f"; full output in {log}" if log else ""
        raise ProgramFailed(f"{Path(command[0]).name} exited with status {process.returncode}{where}:\n{words}")
