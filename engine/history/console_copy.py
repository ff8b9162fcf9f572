"""Database copy for the console, made by a process that does not own the file."""

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

_SETTLED_NS = 1_000_000_000
"""Age of a modification time beyond which another write would certainly change it."""


def copy_database(source: Path, target: Path) -> None:
    """Copy a database and its write-ahead log, neither being written meanwhile, to a private folder. Raises OSError.

    If `target` exists and the database file has not changed since, that copy is reused, and only the log, which is
    small, is copied.
    """
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_unchanged(source, target):
        _copy(source, target)
    source_log, target_log = Path(f"{source}.wal"), Path(f"{target}.wal")
    target_log.unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        _copy(source_log, target_log)


def _is_unchanged(source: Path, target: Path) -> bool:
    """Return whether size and modification time are equal, rsync's default criterion."""
    if not target.exists():
        return False
    ours, theirs = source.stat(), target.stat()
    return (ours.st_size, ours.st_mtime_ns) == (theirs.st_size, theirs.st_mtime_ns)


def _copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    with source.open("rb", buffering=0) as read, open(target, "xb", buffering=0, opener=_private) as written:
        # Shares the blocks where the file system supports it (Btrfs, XFS); where this call fails, copied below.
        with suppress(OSError, AttributeError):
            while os.copy_file_range(read.fileno(), written.fileno(), 1 << 30):
                pass
        shutil.copyfileobj(read, written, 1 << 20)
        changed = os.stat(read.fileno()).st_mtime_ns
    if time.time_ns() - changed > _SETTLED_NS:
        os.utime(target, ns=(changed, changed))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
