"""History read by other processes while its owner writes it."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest

from engine.errors import ConfigError, HistoryLocked
from engine.history import History, lending, open_to_read, write_snapshot
from engine.history import reading as module
from engine.history.console_copy import copy_database
from tests.engine.history.owner import NUM_STEPS
from tests.engine.history.trial_maker import make_trial
from tests.waiting import until

pytestmark = pytest.mark.slow

READERS = """
import sys
from engine.history import open_to_read
with open_to_read(sys.argv[1]) as history:
    print(len(history.recent(100_000)))
"""


class Owner:
    """Another process that owns the file and writes continuously."""

    def __init__(self, path: Path) -> None:
        words = [sys.executable, "-m", "tests.engine.history.owner", str(path)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.num_kept = 0
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()
        until(lambda: self.num_kept)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.num_kept = int(line)

    def end(self) -> int:
        """End the process normally and return its exit status."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        status = self.process.wait(60)
        self._listening.join()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status

    def kill(self) -> None:
        self.process.kill()
        self.end()


@pytest.fixture
def owner(path: Path) -> Iterator[Owner]:
    started = Owner(path)
    yield started
    started.kill()


def num_steps(history: History) -> list[int]:
    """Return the number of steps of each trial; a torn state would have other numbers."""
    rows = history.console.run("SELECT count(*) AS num FROM steps GROUP BY trial_id").table
    found: list[int] = rows["num"].to_pylist()
    return found


def test_a_reader_sees_whole_trials_up_to_now_while_the_owner_writes(owner: Owner, path: Path) -> None:
    seen: list[int] = []
    for _ in range(3):
        before = owner.num_kept
        with open_to_read(path) as history:
            assert len(history.recent(100_000)) >= before
            assert set(num_steps(history)) == {NUM_STEPS}
            seen.append(len(history.recent(100_000)))
        until(lambda: owner.num_kept > seen[-1])
    assert seen == sorted(set(seen))
    assert owner.end() == 0
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_many_readers_at_once_are_all_served(owner: Owner, path: Path) -> None:
    readers = [
        subprocess.Popen([sys.executable, "-c", READERS, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    counts = [int(reader.communicate(timeout=120)[0]) for reader in readers]
    assert min(counts) > 0
    assert owner.end() == 0


def test_a_copy_is_its_users_alone_and_gone_afterwards(owner: Owner, path: Path) -> None:
    with open_to_read(path) as history:
        assert history.path != path
        assert history.path.stat().st_mode & 0o777 == 0o600
        assert history.path.parent.stat().st_mode & 0o777 == 0o700
        assert Path(f"{path}.socket").stat().st_mode & 0o777 == 0o600
    assert not history.path.exists()


def test_a_copy_marks_no_run_as_interrupted_and_purges_nothing(path: Path) -> None:
    with open_to_read(path) as history:  # nobody owns it: the file itself
        assert history.path == path
        kept = make_trial()
        history.record(kept).result()
    owner = Owner(path)
    try:
        with open_to_read(path) as copy:
            copy.delete(kept.id)
            assert copy.trial(kept.id) is None
        with open_to_read(path) as again:
            assert again.trial(kept.id) is not None
    finally:
        owner.kill()


def test_a_snapshot_is_one_file_that_plain_duckdb_opens(owner: Owner, path: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / "copy.duckdb"
    target.parent.mkdir()
    before = owner.num_kept
    with open_to_read(path) as history:
        assert write_snapshot(history, target) == target.stat().st_size
    assert list(target.parent.iterdir()) == [target]
    with duckdb.connect(target, read_only=True) as plain:
        ((num,),) = plain.execute("SELECT count(*) FROM trials").fetchall()
    assert num >= before
    with open_to_read(path) as history, pytest.raises(ConfigError, match="already exists"):
        write_snapshot(history, target)


def test_what_a_killed_reader_left_is_removed_by_the_next(owner: Owner, path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = path.parent / f".{path.name}.scratch-{dead.pid}-x"
    own = path.parent / f".{path.name}.scratch-{os.getpid()}-x"
    for folder in (left, own):
        folder.mkdir()
    with open_to_read(path):
        assert not left.exists()
    assert own.exists()


def test_a_killed_owners_socket_is_in_nobodys_way(owner: Owner, path: Path) -> None:
    owner.kill()
    assert Path(f"{path}.socket").exists()
    with open_to_read(path) as history:
        assert history.path == path
    again = Owner(path)
    try:
        with open_to_read(path) as history:
            assert history.path != path
    finally:
        again.kill()


def test_a_folder_with_a_long_name_has_a_socket_too(tmp_path: Path) -> None:
    path = tmp_path / ("long " * 30) / "history.duckdb"
    owner = Owner(path)
    try:
        with open_to_read(path) as history:
            assert history.path != path
    finally:
        owner.kill()


@pytest.mark.parametrize("stranger", ["silent", "gone", "chatty", "wrong word", "never done"])
def test_strangers_keep_the_owner_from_writing_for_a_moment_only(
    history: History, path: Path, stranger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "SILENCE_S", 0.2)
    peers: list[socket.socket] = []
    for _ in range(20):
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(60)
        try:
            peer.connect(f"{path}.socket") if len(peers) < 8 else None
        except OSError:
            continue
        peers.append(peer)
        with suppress(OSError):
            match stranger:
                case "gone":
                    peer.close()
                case "chatty":
                    peer.sendall(b"d" * 1_000)
                case "wrong word":
                    peer.sendall(b"\0")
                case "never done":
                    peer.sendall(b"p" * 1_000)
    trial = make_trial()
    history.record(trial).result(60)
    assert history.trial(trial.id) is not None
    for peer in peers:
        peer.close()


def test_an_owner_that_closes_waits_for_no_stranger(path: Path) -> None:
    history = History.open(path)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(f"{path}.socket")
        assert peer.recv(1) == b"s"
        history.close(within_s=60)
        assert peer.recv(1) == b""
    assert not Path(f"{path}.socket").exists()


def test_a_copy_that_took_too_long_is_not_used(history: History, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(*_: Path) -> Iterator[None]:
        until(lambda: not history.record(make_trial()).result(60))
        yield

    monkeypatch.setattr(lending, "SILENCE_S", 0.05)
    monkeypatch.setattr(lending, "copy_database", copy)
    with pytest.raises(ConnectionError):
        lending.copy_from_owner(path, path.parent / "copy" / "history.duckdb")


def test_a_slow_copy_that_makes_progress_is_lent_to_its_end(
    history: History, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(source: Path, target: Path) -> Iterator[None]:
        for _ in range(8):
            time.sleep(SILENCE_S / 4)
            yield
        yield from copy_database(source, target)

    SILENCE_S = 2.0
    monkeypatch.setattr(lending, "SILENCE_S", SILENCE_S)
    monkeypatch.setattr(lending, "most_pieces", lambda _path: 8)
    monkeypatch.setattr(lending, "copy_database", copy)
    trial = make_trial()
    history.record(trial).result(60)
    target = path.parent / "copy" / "history.duckdb"
    lending.copy_from_owner(path, target)
    with History.open(target) as copied:
        assert copied.trial(trial.id) is not None


def test_an_owner_that_stands_still_is_named_within_seconds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(path)
    try:
        monkeypatch.setattr(lending, "ANSWER_S", 0.3)
        os.kill(owner.process.pid, 19)  # SIGSTOP
        with pytest.raises(HistoryLocked, match=rf"process {owner.process.pid}.*Try again"), open_to_read(path):
            pass
    finally:
        owner.kill()


def test_another_program_with_the_file_lends_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GIVEN_UP_S", 0.3)
    with History.open(path):
        pass
    holds = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(1, flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", holds, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(HistoryLocked, match="provides no copy"), open_to_read(path):
            pass
        other.kill()


def test_the_owner_itself_never_copies_its_own_file(history: History, path: Path) -> None:
    with pytest.raises(HistoryLocked, match=str(os.getpid())), open_to_read(path):
        pass
