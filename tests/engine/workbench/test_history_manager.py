"""History of a second workbench: what it measures reaches the history, whoever owns it and whenever the owner ends."""

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.errors import HistoryError, HistoryLocked
from engine.history import INBOX, History, TrialRecord, stage_kept
from engine.settings import Settings
from engine.workbench import history_manager
from engine.workbench.history_manager import HistoryManager
from tests.engine.history.run_maker import make_run
from tests.engine.history.test_comparisons import made
from tests.engine.history.trial_maker import make_trial
from tests.waiting import until

pytestmark = pytest.mark.slow

OWNER = """
import sys
from engine.settings import Settings
from engine.history import stage_kept
from engine.workbench.history_manager import HistoryManager

manager = HistoryManager(Settings.from_environment({"LOGITBENCH_HOME": sys.argv[1]}), print, stage_kept)
assert manager.history is not None
print("open", flush=True)
sys.stdin.read()
manager.close(60.0)
"""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_manager, "LOOK_S", 0.1)


def settings_of(home: Path) -> Settings:
    return Settings.from_environment({"LOGITBENCH_HOME": str(home)})


@contextmanager
def owner(home: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """Another process that owns the history of `home` and imports its inbox; ends when its input is closed."""
    words = [sys.executable, "-c", OWNER, str(home)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield process


def managed(home: Path) -> HistoryManager:
    manager = HistoryManager(settings_of(home), lambda: None, stage_kept)
    assert isinstance(manager.error, HistoryLocked) and manager.is_elsewhere
    return manager


def keep(manager: HistoryManager, draw: random.Random) -> str:
    """Have a trial, a run or a comparison kept, as the workbench does; return its id."""
    kind = draw.choice(["trial", "run", "comparison"])
    if kind == "comparison":
        record = made()
        manager.write_later(record.id, lambda history: history.comparisons.save(record), lambda: record)
        return record.id
    if kind == "run":
        run = make_run(3)
        manager.write_later(run.id, lambda history: history.runs.put(run), lambda: run)
        return run.id
    trial = make_trial()

    def write(history: History) -> None:
        if not history.restore(trial.id):
            history.record(trial).result()

    manager.write_later(trial.id, write, lambda: trial)
    return trial.id


def ids_of(home: Path) -> list[str]:
    """Return the ids of all that is stored, once the inbox has been imported too."""
    manager = HistoryManager(settings_of(home), lambda: None, stage_kept)
    history = manager.history
    assert history is not None
    until(lambda: not any((home / INBOX).glob("*.*")), "the inbox is not imported")
    stored = [trial.id for trial in history.recent(100)] + [run.id for run in history.runs.recent(100)]
    stored += [comparison.id for comparison in history.comparisons.recent(100)]
    manager.close(60.0)
    return stored


@pytest.mark.parametrize("ending", ["killed", "ended", "outlives"])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_whoever_ends_first_and_when(tmp_path: Path, ending: str, seed: int) -> None:
    draw = random.Random(seed)
    with owner(tmp_path) as other:
        assert other.stdin is not None
        manager = managed(tmp_path)
        kept = [keep(manager, draw) for _ in range(draw.randrange(1, 6))]
        time.sleep(draw.choice([0.0, 0.05, 0.5]))
        if ending == "killed":
            other.kill()
        elif ending == "ended":
            other.stdin.close()
        else:
            manager.close(60.0)
        kept += [keep(manager, draw) for _ in range(draw.randrange(3))] if ending != "outlives" else []
        if ending != "outlives" and draw.random() < 0.7:
            until(lambda: manager.history, "the history is not opened")
        manager.close(60.0)
    assert sorted(ids_of(tmp_path)) == sorted(kept)


def test_closing_waits_for_a_file_that_is_being_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()
    open_history = HistoryManager._open

    def slow(manager: HistoryManager) -> History:
        opened = open_history(manager)
        begun.set()
        time.sleep(0.5)
        return opened

    with owner(tmp_path) as other:
        manager = managed(tmp_path)
        monkeypatch.setattr(HistoryManager, "_open", slow)
        other.kill()
        assert begun.wait(60.0)
        manager.close(60.0)
        History.open(settings_of(tmp_path).history).close()
    assert manager.history is None


def test_a_trial_that_was_handed_over_is_stored_once(tmp_path: Path) -> None:
    with owner(tmp_path) as other:
        assert other.stdin is not None
        manager = managed(tmp_path)
        kept = keep(manager, random.Random(0))
        until(lambda: manager._missed[kept].read is None, "it is not handed over")
        until(lambda: not any((tmp_path / INBOX).glob("*.*")), "the owner does not import it")
        other.stdin.close()
        until(lambda: manager.history, "the history is not opened")
        until(lambda: not manager._missed, "the write stays queued")
        manager.close(60.0)
    assert ids_of(tmp_path) == [kept]


def test_an_inbox_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    with owner(tmp_path) as other:
        assert other.stdin is not None
        manager = managed(tmp_path)
        (tmp_path / INBOX).rmdir() if (tmp_path / INBOX).exists() else None
        (tmp_path / INBOX).write_bytes(b"")
        kept = keep(manager, random.Random(1))
        time.sleep(0.5)
        assert manager._missed[kept].read is not None
        (tmp_path / INBOX).unlink()
        until(lambda: manager._missed[kept].read is None, "it is not handed over")
        manager.close(60.0)
    assert ids_of(tmp_path) == [kept]


@pytest.mark.parametrize("how", ["removed", "replaced", "home removed"])
def test_a_file_that_was_taken_away_is_said_and_what_came_since_is_stored_later(tmp_path: Path, how: str) -> None:
    home = tmp_path / "home"
    manager = HistoryManager(settings_of(home), lambda: None, stage_kept)
    history, path = manager.history, settings_of(home).history
    assert history is not None
    trial = make_trial()
    match how:
        case "removed":
            path.unlink()
        case "replaced":
            shutil.copy(path, tmp_path / "older")
            os.replace(tmp_path / "older", path)
        case "home removed":
            shutil.rmtree(home)
    with pytest.raises(HistoryError, match="removed or replaced by another program"):
        history.record(trial).result()
    until(lambda: manager.error, "it is not said")
    manager.write_later(trial.id, lambda history: history.record(trial).result(), lambda: trial)
    manager.close(60.0)
    assert ids_of(home) == [trial.id]


def test_a_file_that_was_put_back_is_used_again(tmp_path: Path) -> None:
    manager = HistoryManager(settings_of(tmp_path), lambda: None, stage_kept)
    history, path = manager.history, settings_of(tmp_path).history
    assert history is not None
    first, second = make_trial(), make_trial()
    history.record(first).result()
    path.rename(tmp_path / "away")
    until(lambda: manager.error, "it is not said")
    assert history.trial(first.id) is not None
    manager.write_later(second.id, lambda history: history.record(second).result(), lambda: second)
    (tmp_path / "away").rename(path)
    until(lambda: history.trial(second.id), "it is not stored")
    until(lambda: manager.error is None, "the error stays")
    manager.close(60.0)
    assert sorted(ids_of(tmp_path)) == sorted([first.id, second.id])


def test_a_write_that_comes_while_the_history_closes_is_written(tmp_path: Path) -> None:
    manager = HistoryManager(settings_of(tmp_path), lambda: None, stage_kept)
    trial = make_trial()
    manager.write_later(trial.id, lambda history: history.record(trial).result())
    manager.close(60.0)
    with History.open(settings_of(tmp_path).history) as history:
        assert isinstance(history.trial(trial.id), TrialRecord)
    with pytest.raises(HistoryError):
        manager.history.recent(1) if manager.history else None


@pytest.mark.parametrize("obstacle", ["a folder", "another program's file", "no permission"])
def test_a_history_that_cannot_be_opened_at_the_start_is_opened_once_it_can(tmp_path: Path, obstacle: str) -> None:
    path, opened = settings_of(tmp_path).history, threading.Event()
    match obstacle:
        case "a folder":
            path.mkdir()
        case "another program's file":
            path.write_bytes(b"not a database" * 1000)
        case "no permission":
            tmp_path.rmdir()
            tmp_path.write_bytes(b"")
    manager = HistoryManager(settings_of(tmp_path), opened.set, stage_kept)
    assert manager.history is None and manager.error is not None and not manager.is_elsewhere
    trial = make_trial()
    manager.write_later(trial.id, lambda history: history.record(trial).result(), lambda: trial)
    match obstacle:
        case "a folder":
            path.rmdir()
        case "another program's file":
            path.unlink()
        case "no permission":
            tmp_path.unlink()
    assert opened.wait(60)
    until(lambda: manager.error is None, "the error stays")
    history = manager.history
    assert history is not None
    until(lambda: history.trial(trial.id), "the trial is not stored")
    manager.close(60.0)
    assert ids_of(tmp_path) == [trial.id]
