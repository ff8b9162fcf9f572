"""Copy of the database that the console queries: complete, private, and only what has changed is copied."""

import os
import time
from pathlib import Path

import duckdb
import pytest

from engine.history import console_copy
from engine.history.console_copy import PIECE_BYTES, most_pieces


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.duckdb"
    path.write_bytes(os.urandom(3_000_000))
    old = time.time_ns() - 10_000_000_000
    os.utime(path, ns=(old, old))
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "target.duckdb"


def copy_database(source: Path, target: Path) -> int:
    """Copy the whole database; return the number of pieces."""
    return sum(1 for _ in console_copy.copy_database(source, target))


def log_of(path: Path) -> Path:
    return Path(f"{path}.wal")


def test_file_and_log_are_copied_for_their_owner_alone(source: Path, target: Path) -> None:
    log_of(source).write_bytes(b"written ahead")
    copy_database(source, target)
    assert target.read_bytes() == source.read_bytes()
    assert log_of(target).read_bytes() == b"written ahead"
    assert {path.stat().st_mode & 0o777 for path in target.parent.iterdir()} == {0o600}
    assert target.parent.stat().st_mode & 0o777 == 0o700


def test_only_the_log_is_copied_where_the_file_did_not_change(source: Path, target: Path) -> None:
    copy_database(source, target)
    before = target.stat().st_ctime_ns
    log_of(source).write_bytes(b"later")
    copy_database(source, target)
    assert target.stat().st_ctime_ns == before
    assert log_of(target).read_bytes() == b"later"


@pytest.mark.parametrize("change", ["grown", "rewritten", "rewritten within a moment"])
def test_a_file_that_changed_is_copied_again(source: Path, target: Path, change: str) -> None:
    if change == "rewritten within a moment":
        os.utime(source)
    copy_database(source, target)
    times = source.stat().st_mtime_ns
    source.write_bytes(os.urandom(3_000_000 + (change == "grown")))
    if change == "rewritten within a moment":  # the file system's clock did not advance in between
        os.utime(source, ns=(times, times))
    copy_database(source, target)
    assert target.read_bytes() == source.read_bytes()


def test_a_log_that_is_gone_goes(source: Path, target: Path) -> None:
    log_of(source).write_bytes(b"written ahead")
    copy_database(source, target)
    log_of(source).unlink()
    copy_database(source, target)
    assert not log_of(target).exists()


def test_a_copy_that_was_cut_off_is_made_again(source: Path, target: Path) -> None:
    copy_database(source, target)
    os.truncate(target, 1_000_000)
    copy_database(source, target)
    assert target.read_bytes() == source.read_bytes()


def test_it_copies_where_the_system_offers_no_sharing(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    copy_database(source, target)
    assert target.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("num_bytes_at_once", [None, 1000, PIECE_BYTES - 1])
@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, 5 * PIECE_BYTES + 3])
def test_progress_is_counted_in_bytes(
    source: Path, target: Path, size: int, num_bytes_at_once: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.write_bytes(os.urandom(size))
    log_of(source).write_bytes(bytes(size // 2))
    if num_bytes_at_once is not None:  # a system that copies less than it is asked for
        whole, most = os.copy_file_range, num_bytes_at_once
        monkeypatch.setattr(os, "copy_file_range", lambda ours, theirs, num: whole(ours, theirs, min(num, most)))
    assert copy_database(source, target) == size // PIECE_BYTES + size // 2 // PIECE_BYTES <= most_pieces(source)
    assert target.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("num_logged", [0, 10, 10_000])
def test_a_copy_opens_with_all_that_was_committed(tmp_path: Path, target: Path, num_logged: int) -> None:
    path = tmp_path / "real.duckdb"
    with duckdb.connect(path, config={"checkpoint_threshold": "1TiB"}) as owner:
        owner.execute("CREATE TABLE kept AS SELECT range AS n FROM range(1000)")
        owner.execute("CHECKPOINT")
        owner.execute("INSERT INTO kept SELECT range FROM range(?)", [num_logged])
        copy_database(path, target)
        with duckdb.connect(target, read_only=True, config={"threads": "1"}) as copy:
            assert copy.execute("SELECT count(*) FROM kept").fetchall() == [(1000 + num_logged,)]
