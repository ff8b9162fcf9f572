"""The console's copy of the history: as new as the question, private, kept until the history changes, then removed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import HistoryError
from engine.history import History
from tests.engine.history.run_maker import make_run


def copied(history: History) -> dict[str, int]:
    """Return the change time of each file of the copy, by name."""
    return {path.name: path.stat().st_ctime_ns for path in history.path.with_name("history.duckdb.console").iterdir()}


def test_an_answer_holds_all_that_was_written_before_it(history: History) -> None:
    for num_runs in range(1, 4):
        history.runs.keep(make_run(3))
        assert history.console.run("FROM runs").num_rows == num_runs
    at_first = history.console.run("FROM runs").as_of
    assert history.console.run("FROM runs").as_of >= at_first


def test_the_copy_is_kept_until_the_history_changes(history: History) -> None:
    history.runs.keep(make_run(3))
    history.console.run("FROM runs")
    before = copied(history)
    history.console.run("FROM cells")
    assert copied(history) == before
    history.runs.keep(make_run(3))
    assert copied(history) == before
    history.console.run("FROM runs")
    assert copied(history) != before


@pytest.mark.slow
def test_the_copy_is_private_and_goes_with_the_history(path: Path) -> None:
    with History.open(path) as history:
        history.console.run("FROM runs")
        folder = path.with_name("history.duckdb.console")
        assert folder.stat().st_mode & 0o777 == 0o700
        assert [file.stat().st_mode & 0o777 for file in folder.iterdir()] == [0o600] * len(copied(history))
    assert not folder.exists()


@pytest.mark.slow
def test_a_copy_that_a_killed_process_left_is_removed(path: Path) -> None:
    left = path.with_name("history.duckdb.console")
    left.mkdir()
    (left / "history.duckdb").write_bytes(b"left behind")
    with History.open(path) as history:
        assert not left.exists()
        assert history.console.run("SELECT 1").num_rows == 1


def test_the_owner_keeps_its_lock_while_it_is_copied(history: History) -> None:
    history.console.run("FROM runs")
    program = f"import duckdb; duckdb.connect({str(history.path)!r})"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "Could not set lock" in other.stderr


def test_a_folder_without_room_for_the_copy_is_said(history: History) -> None:
    folder = history.path.with_name("history.duckdb.console")
    folder.write_bytes(b"a file where the folder should be")
    with pytest.raises(HistoryError, match="could not be copied"):
        history.console.run("SELECT 1")
    folder.unlink()
    assert history.console.run("SELECT 1").num_rows == 1


@pytest.mark.slow
def test_a_history_that_was_removed_or_replaced_is_named_as_such(path: Path) -> None:
    for is_replaced in (False, True):
        home = path.parent / "home"
        with History.open(home / path.name) as history:
            shutil.rmtree(home)
            if is_replaced:
                History.open(path).close()
                home.mkdir()
                path.rename(home / path.name)
            for _ in range(2):
                with pytest.raises(HistoryError, match=r"was removed or replaced by another program.* Put the file"):
                    history.console.run("FROM runs")
