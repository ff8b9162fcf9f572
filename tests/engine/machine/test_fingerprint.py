"""The fingerprint of this machine."""

import json
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from engine import ConfigError
from engine.llama.build_info import compiler_of
from engine.machine import fingerprint as fingerprints
from engine.machine.fingerprint import about_llama, fingerprint, fingerprint_hash, sources, versions

HEADER = Path(__file__).parents[3] / ".ci" / "llama.h"


def test_the_fingerprint_is_plain_and_stays_the_same() -> None:
    machine = fingerprint()
    assert json.loads(json.dumps(machine)) == machine
    assert fingerprint_hash(machine) == fingerprint_hash(fingerprint())
    assert machine["threads"] >= len(machine["allowed_cores"]) >= 1
    assert machine["llama"]["compiler"].startswith(("GCC ", "clang "))
    assert machine["llama"]["commit"] and "CPU" in machine["llama"]["features"]


def test_every_part_of_it_counts() -> None:
    machine = fingerprint()
    hashes = {fingerprint_hash(machine | {name: "another"}) for name in machine}
    assert len(hashes) == len(machine)
    assert fingerprint_hash(machine) not in hashes


def test_a_build_is_asked_for_its_own_libraries() -> None:
    package = find_spec("llama_cpp")
    assert package is not None and package.origin is not None
    assert about_llama(str(Path(package.origin).parent / "lib")) == about_llama()


def test_two_checkouts_differ_by_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def seen() -> str:
        sources.cache_clear()
        return sources()

    try:
        ours = seen()
        assert re.fullmatch("[0-9a-f]{12}", ours) and seen() == ours
        monkeypatch.setattr(fingerprints, "_FOLDER", tmp_path)
        assert seen() == ""
        hashes = [""]
        for name in ("a.py", "b.py", "deep/c.py"):
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("one")
            hashes.append(seen())
            path.write_text("two")
            hashes.append(seen())
        (tmp_path / "b.py").rename(tmp_path / "bb.py")
        hashes.append(seen())
        assert len(set(hashes)) == len(hashes)
        for name in (
            "kernel.so",
            "kernel.c",
            "_data/program.py",
            ".hidden/a.py",
            ".#a.py",
            "deep/.c.py",
            "__pycache__/a.pyc",
        ):
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("one")
        assert seen() == hashes[-1]
    finally:
        sources.cache_clear()


@pytest.mark.parametrize(("compiler", "name"), [("g++", "GCC"), ("clang++", "clang")])
def test_the_compiler_of_a_library(tmp_path: Path, compiler: str, name: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    (tmp_path / "one.cpp").write_text("int one() { return 1; }")
    library = tmp_path / "libone.so"
    words: list[str | Path] = [compiler, "-shared", "-fPIC", "-o", library, tmp_path / "one.cpp"]
    ask = "-dumpfullversion" if name == "GCC" else "-dumpversion"
    version = subprocess.run([compiler, ask], check=True, capture_output=True, text=True).stdout.strip()
    subprocess.run(words, check=True)
    assert compiler_of(library) == f"{name} {version}"
    subprocess.run([*words, "-include", HEADER], check=True)
    assert compiler_of(library) == f"{name} {version} with {header_version()}"


def test_llama_cpp_is_built_with_the_header() -> None:
    assert str(fingerprint()["llama"]["compiler"]).endswith(f" with {header_version()}")


def header_version() -> str:
    """The signature in `.ci/llama.h`."""
    (version,) = re.findall(r"Logitbench (llama\.h \d+)", HEADER.read_text())
    return str(version)


def test_a_library_that_does_not_say_its_compiler(tmp_path: Path) -> None:
    assert compiler_of(tmp_path / "missing.so") == ""
    silent = tmp_path / "silent.so"
    silent.write_bytes(b"\x7fELF" + bytes(1000))
    assert compiler_of(silent) == ""


def test_a_folder_without_libraries_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded"):
        fingerprint(str(tmp_path))


def test_versions_name_what_timings_depend_on() -> None:
    assert {"python", "llama-cpp-python", "numpy"} <= set(versions())
