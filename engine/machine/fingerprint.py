"""Machine fingerprint: what the timings of a run depend on, and a hash to distinguish machines."""

import hashlib
import json
import math
import platform
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from engine.errors import ConfigError, EngineError
from engine.files import read_regular
from engine.machine.cores import allowed_cores, cpu_name, cpu_quota
from engine.process.program import Program

_PACKAGES = ("logitbench", "llama-cpp-python", "numpy", "msgspec", "psutil")
EMBEDDING_PACKAGES = ("torch", "sentence-transformers", "transformers", "onnxruntime", "openvino")
SOURCES = "source code of logitbench"
"""Name of `sources` among versions."""
_PATIENCE_S = 60
_FOLDER, _DATA = Path(__file__).parents[1], "_data"
"""Folder of this package, and the one in it that a wheel has for data/, whose programs never run here."""


def fingerprint(build: str = "") -> dict[str, Any]:
    """Return what determines the speed of a model on this machine, as plain values for JSON.

    That is the machine itself and, as `llama`, versions, commit, compiler and features of llama.cpp's libraries (those
    in the folder `build` if given). Raises ConfigError where these cannot be loaded.
    """
    return {**hardware(), "llama": about_llama(build)}


def hardware() -> dict[str, Any]:
    """Return the part of the fingerprint that is read without a child process.

    cpu_quota: cores' worth of time granted by the control group, None without a limit; governor: empty where the system
    has none; huge_pages: which programs get them (always: all, madvise: those that ask, never), empty without them.
    """
    quota = cpu_quota()
    return {
        "cpu": cpu_name(),
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "allowed_cores": allowed_cores(),
        "cpu_quota": None if math.isinf(quota) else quota,
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "huge_pages": _chosen(_read("/sys/kernel/mm/transparent_hugepage/enabled")),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
    }


def fingerprint_hash(machine: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits (of SHA-256), the same for the same fingerprint."""
    return hashlib.sha256(json.dumps(machine, sort_keys=True).encode()).hexdigest()[:16]


def versions(more: Iterable[str] = ()) -> dict[str, str]:
    """Return the versions of Python, of the packages that timings depend on and of `more`; only installed ones."""
    found = {"python": platform.python_version()}
    for name in (*_PACKAGES, *more):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@cache
def sources() -> str:
    """Return 12 hexadecimal digits (of SHA-256) of this package's source files, which tell checkouts of one version
    apart; empty where there are none to read. Of the kernel in C, a wheel has only what was made of it."""
    found = hashlib.sha256()
    paths = [path.relative_to(_FOLDER) for path in _FOLDER.rglob("*") if path.suffix == ".py"]
    own = sorted(path for path in paths if path.parts[0] != _DATA and "/." not in f"/{path}")
    try:
        for path in own:
            content = read_regular(_FOLDER / path)
            found.update(f"{path.as_posix()} {len(content)}\n".encode() + content)
    except OSError:
        return ""
    return found.hexdigest()[:12] if own else ""


def difference(found: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Return the first name whose version differs, with both versions; empty where all are the same."""
    for name in sorted({*found, *wanted}):
        theirs, ours = found.get(name, ""), wanted.get(name, "")
        if theirs != ours:
            return f"{name} ({theirs or 'none'} instead of {ours or 'none'})"
    return ""


@cache
def about_llama(build: str = "") -> dict[str, str]:
    """Return versions, commit, compiler and features of llama.cpp's libraries, read by a short-lived process.

    Raises ConfigError where they cannot be loaded.
    """
    program = Program(
        "engine.llama.build_info", does="loads llama.cpp's libraries", answers=dict[str, str], build=build
    )
    try:
        found: dict[str, str] = program.ask(None, _PATIENCE_S)
    except EngineError as error:
        place = build or "the Python package"
        raise ConfigError(f"the llama.cpp libraries of {place} cannot be loaded: {error}") from error
    finally:
        program.close()
    return found


def _chosen(text: str) -> str:
    """Return the word in brackets, which is how sysfs marks the current choice; empty where there is none."""
    return text.partition("[")[2].partition("]")[0]


def _read(path: str) -> str:
    """Return the text of a small system file; empty where it does not exist."""
    with suppress(OSError):
        return Path(path).read_text().strip()
    return ""
