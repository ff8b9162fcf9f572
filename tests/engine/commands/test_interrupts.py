"""Ctrl+C at any moment of a command: it ends with status 130 or by the signal, and without a traceback."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.history import History

pytestmark = pytest.mark.slow

INTERRUPT = "import os, signal; interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
AT_IMPORT = """
import sys
class Finder:
    def find_spec(name, *_):
        if name == {name!r}:
            interrupt()
sys.meta_path.insert(0, Finder)
"""
AT_EXIT = """
import atexit
atexit.register(interrupt)
"""
IN_STATUS = """
from engine import private_files
private_files.end = interrupt
"""
AS_ANOTHER_ERROR = """
from engine.commands import history
from engine.errors import HistoryError
def fails(path):
    try:
        interrupt()
    except KeyboardInterrupt as error:
        raise {error}("interrupted") from error
history.readable = fails
"""
IGNORED = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
RUN = """
import runpy, sys
sys.argv[1:] = ["history", "list"]
runpy.run_module("engine", run_name="__main__", alter_sys=True)
"""


def run(*before: str) -> "subprocess.CompletedProcess[str]":
    """Run `history list` in a process that runs these statements first."""
    script = INTERRUPT + "".join(before) + RUN
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(autouse=True)
def a_history(home: Path) -> None:
    History.open(home / "history.duckdb").close()


@pytest.mark.parametrize("name", ["engine.commands.arguments", "engine.commands.history", "duckdb", "pyarrow"])
def test_while_modules_are_imported(name: str) -> None:
    done = run(AT_IMPORT.format(name=name))
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("before", [AT_EXIT, IN_STATUS], ids=["at exit", "between command and exit"])
def test_after_the_command(before: str) -> None:
    done = run(before)
    assert done.returncode in (130, -signal.SIGINT)
    assert done.stderr == ""


@pytest.mark.parametrize(
    "before",
    [AS_ANOTHER_ERROR.format(error=name) for name in ("RuntimeError", "ImportError", "HistoryError")],
    ids=["RuntimeError", "ImportError", "HistoryError"],
)
def test_where_a_library_turns_it_into_another_error(before: str) -> None:
    done = run(before)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\n")


def test_an_ignored_one_stays_ignored() -> None:
    done = run(IGNORED, AT_IMPORT.format(name="duckdb"), IN_STATUS)
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_the_engine_leaves_signals_alone() -> None:
    script = "import signal, engine.__main__; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True\n"
