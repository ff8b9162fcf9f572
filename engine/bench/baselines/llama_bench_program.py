"""llama-bench program of llama.cpp: found on this machine, or built from the installed llama-cpp-python's source."""

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

from engine.errors import ConfigError, ProgramFailed
from engine.machine.cores import num_cores
from engine.models.repacking import llama_cpp_libraries
from engine.settings import Settings, is_checkout

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


def find_llama_bench() -> Path | None:
    """Return the program that LOGITBENCH_LLAMA_BENCH names, else the one built by us, else the one in PATH, else None.

    Raises ConfigError for malformed settings, and where the named program does not exist.
    """
    named = Settings.from_environment().llama_bench
    if named is not None:
        if not named.is_file():
            raise ConfigError(f"LOGITBENCH_LLAMA_BENCH = {str(named)!r}: there is no such program")
        return named
    built, found = built_program(PROGRAM), shutil.which(PROGRAM)
    if built.is_file():
        return built
    return Path(found) if found else None


def built_program(name: str) -> Path:
    """Return the path that a program of llama.cpp has once it is built."""
    return build_folder() / "build" / "bin" / name


def build_folder() -> Path:
    """Return the folder of llama.cpp's source and programs: .cache/peers of a checkout, else in the home folder."""
    if is_checkout():
        return Path(__file__).resolve().parents[3] / ".cache" / "peers"
    return Settings.from_environment().home / "peers"


def libraries_for(program: Path) -> dict[str, str]:
    """Return the environment that makes a program built by us load the same shared libraries as the Python package.

    Both come from the same source, so the calling language is the only difference. Empty for other programs.
    """
    if program != built_program(PROGRAM) or sys.platform != "linux":
        return {}
    libraries = llama_cpp_libraries()
    if libraries is None:
        return {}
    folders = [str(libraries), os.environ.get("LD_LIBRARY_PATH", "")]
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders))}


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
        raise ProgramFailed("cmake, which builds llama.cpp's programs, was not found: install it, then try again")
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
