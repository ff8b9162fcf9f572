"""llama-bench program: found or built; a script plays the compiler, because the real one takes minutes."""

import os
import subprocess
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

from engine.bench.baselines import llama_bench_program
from engine.bench.baselines.arms import missing_engines
from engine.bench.baselines.llama_bench_program import (
    PROGRAM,
    build_llama_bench,
    build_minutes,
    build_programs,
)
from engine.bench.planning.plan import ARMS
from engine.errors import ConfigError, ProgramFailed
from engine.models import llama_programs
from engine.models.llama_programs import built_program, find_program, libraries_for
from engine.settings import is_checkout

CMAKE = """#!/bin/sh
echo "$@" >> "$FOLDER/asked"
git -C "$FOLDER/source" rev-parse HEAD 2>/dev/null && exit 9
case $1 in
-S) exit 0 ;;
--build)
    echo "[  5%] Building"
    echo "[ 60%] Building"
    [ -z "$ENDLESS" ] || sleep 600
    [ -z "$BROKEN" ] || { echo "error: no such header"; exit 2; }
    mkdir -p "$2/bin"
    echo >"$2/bin/llama-bench" ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty build folder with the source and a fake cmake, inside a git repository."""
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "-m", "one"],
        cwd=tmp_path,
        check=True,
    )
    folder = tmp_path / "peers"
    (folder / "source" / "package" / "vendor" / "llama.cpp").mkdir(parents=True)
    (folder / "source" / "requirement.txt").write_text(f"llama-cpp-python=={version('llama-cpp-python')}")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "cmake").write_text(CMAKE)
    (programs / "cmake").chmod(0o755)
    for module in (llama_programs, llama_bench_program):
        monkeypatch.setattr(module, "build_folder", lambda: folder)
    monkeypatch.setenv("FOLDER", str(folder))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    return folder


def test_building_tells_how_far_it_is_and_leaves_the_program(folder: Path) -> None:
    shares: list[float] = []
    assert build_llama_bench(shares.append) == folder / "build" / "bin" / "llama-bench"
    assert shares == [0.05, 0.6, 1.0]
    assert "[ 60%] Building" in (folder / "build.log").read_text()
    configured, built = (folder / "asked").read_text().splitlines()
    assert "-DCMAKE_BUILD_TYPE=Release" in configured
    assert built.endswith("--target llama-bench")


def test_flags_of_the_environment_reach_cmake(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=on '-DX=a b'")
    build_programs(("llama-bench", "llama-server"), 3)
    configured, built = (folder / "asked").read_text().splitlines()
    assert configured.endswith("-DGGML_CUDA=on -DX=a b")
    assert built.endswith("--parallel 3 --target llama-bench llama-server")


def test_a_failed_build_tells_its_last_words(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKEN", "1")
    with pytest.raises(ProgramFailed, match=r"(?s)status 2; full output in .*build.log:.*no such header"):
        build_llama_bench()


def test_what_a_listener_raises_ends_the_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENDLESS", "1")

    def stop(share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_llama_bench(stop)
    assert not [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", "600"]]


def test_without_cmake_the_remedy_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(ProgramFailed, match="install it"):
        build_llama_bench()


def test_the_setting_goes_before_what_was_built_and_that_before_the_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = folder / "llama-bench"
    elsewhere.write_text("#!/bin/sh\n")
    elsewhere.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    assert find_program(PROGRAM) == elsewhere
    assert libraries_for(elsewhere) == {}
    built = build_llama_bench()
    assert find_program(PROGRAM) == built
    monkeypatch.setenv("LOGITBENCH_LLAMA_BENCH", str(elsewhere))
    assert find_program(PROGRAM) == elsewhere


def test_what_was_built_takes_the_libraries_of_the_python_package(folder: Path) -> None:
    libraries = libraries_for(built_program("llama-bench"))["LD_LIBRARY_PATH"].split(os.pathsep)[0]
    assert list(Path(libraries).glob("libllama*"))


def test_a_named_program_that_is_not_there_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_llama_bench()
    monkeypatch.setenv("LOGITBENCH_LLAMA_BENCH", str(folder / "nothing"))
    with pytest.raises(ConfigError, match="LOGITBENCH_LLAMA_BENCH"):
        find_program(PROGRAM)
    missing = missing_engines("", ARMS)["llama-bench"]
    assert "no such program" in missing.remedy and not missing.can_be_built


def test_a_folder_that_cannot_be_written_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "source" / "requirement.txt").unlink()
    (folder / "in the way").write_text("")
    monkeypatch.setattr(llama_bench_program, "build_folder", lambda: folder / "in the way")
    with pytest.raises(ProgramFailed, match="could not be built in .*in the way"):
        build_llama_bench()


def test_a_download_without_the_source_is_reported(folder: Path) -> None:
    (folder / "source" / "package" / "vendor" / "llama.cpp").rmdir()
    with pytest.raises(ProgramFailed, match="does not contain llama.cpp"):
        build_llama_bench()


def test_the_estimate_is_some_minutes_and_the_place_is_that_of_make_peers() -> None:
    assert 2 <= build_minutes() <= 8
    assert is_checkout()
    assert built_program("llama-bench").parts[-5:] == (".cache", "peers", "build", "bin", "llama-bench")
