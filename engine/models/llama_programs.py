"""Programs of llama.cpp on this machine: named in the settings, built by the workbench, or in PATH."""

import os
import shutil
import sys
from pathlib import Path

from engine.errors import ConfigError
from engine.models.repacking import llama_cpp_libraries
from engine.settings import PREFIX, Settings, is_checkout


def find_program(name: str) -> Path | None:
    """Return the program that its setting names (LOGITBENCH_LLAMA_BENCH for llama-bench), else the one built by the
    workbench, else the one in PATH, else None.

    Raises ConfigError for malformed settings, and where the named program does not exist or may not be executed.
    """
    setting = name.replace("-", "_")
    named: Path | None = getattr(Settings.from_environment(), setting)
    if named is not None:
        if not named.is_file():
            raise ConfigError(f"{PREFIX}{setting.upper()} = {str(named)!r}: there is no such program")
        if not os.access(named, os.X_OK):
            raise ConfigError(f"{PREFIX}{setting.upper()} = {str(named)!r}: this file may not be executed")
        return named
    built, found = built_program(name), shutil.which(name)
    if built.is_file():
        return built
    return Path(found) if found else None


def built_program(name: str) -> Path:
    """Return the path that a program of llama.cpp has once it is built."""
    return build_folder() / "build" / "bin" / name


def build_folder() -> Path:
    """Return the folder of llama.cpp's source and programs: .cache/peers of a checkout, else in the home folder."""
    if is_checkout():
        return Path(__file__).resolve().parents[2] / ".cache" / "peers"
    return Settings.from_environment().home / "peers"


def libraries_for(program: Path) -> dict[str, str]:
    """Return the environment that makes a program built by the workbench load the libraries of the Python package.

    Both come from the same source, so that the same code computes. Empty for other programs.
    """
    if program != built_program(program.name) or sys.platform != "linux":
        return {}
    libraries = llama_cpp_libraries()
    if libraries is None:
        return {}
    folders = [str(libraries), os.environ.get("LD_LIBRARY_PATH", "")]
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders))}
