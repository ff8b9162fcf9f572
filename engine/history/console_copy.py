"""Database copy for the console, made by a process that does not own the file."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PIECE_BYTES = 1 << 20
"""Copied at once: small, so that a slow disk can be distinguished from a copy that stands still."""

_SETTLED_NS = 1_000_000_000
"""Age of a modification time beyond which another write would certainly change it."""


def copy_database(source: Path, target: Path) -> Iterator[None]:
    """Copy a database and its write-ahead log, neither being written meanwhile, to a private folder. Raises OSError.

    Yields after each piece of PIECE_BYTES; the copy is complete when the iterator ends. If `target` exists and
    the database file has not changed since, that copy is reused, and only the log, which is small, is copied.
    """
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_unchanged(source, target):
        yield from _copy(source, target)
    source_log, target_log = Path(f"{source}.wal"), Path(f"{target}.wal")
    target_log.unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        yield from _copy(source_log, target_log)


def most_pieces(source: Path) -> int:
    """Return the number of pieces that a copy of a database and its log has at most."""
    return sum(file.stat().st_size for file in (source, Path(f"{source}.wal")) if file.exists()) // PIECE_BYTES


def _is_unchanged(source: Path, target: Path) -> bool:
    """Return whether size and modification time are equal, rsync's default criterion."""
    if not target.exists():
        return False
    ours, theirs = source.stat(), target.stat()
    return (ours.st_size, ours.st_mtime_ns) == (theirs.st_size, theirs.st_mtime_ns)


def _copy(source: Path, target: Path) -> Iterator[None]:
    num_bytes = 0
    for num in _copied(source, target):
        num_bytes += num
        if num_bytes >= PIECE_BYTES:  # a call may copy less than it was asked for
            num_bytes -= PIECE_BYTES
            yield


def _copied(source: Path, target: Path) -> Iterator[int]:
    """Copy a file; yields the number of bytes that each system call has copied."""
    target.unlink(missing_ok=True)
    with source.open("rb", buffering=0) as read, open(target, "xb", buffering=0, opener=_private) as written:
        # Shares the blocks where the file system supports it (Btrfs, XFS); where this call fails, copied below.
        with suppress(OSError, AttributeError):
            while num := os.copy_file_range(read.fileno(), written.fileno(), PIECE_BYTES):
                yield num
        while piece := memoryview(read.read(PIECE_BYTES)):
            while piece:
                num = written.write(piece)
                piece = piece[num:]
                yield num
        changed = os.stat(read.fileno()).st_mtime_ns
    if time.time_ns() - changed > _SETTLED_NS:
        os.utime(target, ns=(changed, changed))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
