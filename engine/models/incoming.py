"""Partial file of a download, or of a transfer to another machine: written and hashed at the same time.

It is stored next to its final path under a hidden name that ends in .partial and contains the start of its hash, and is
renamed only when it is complete and the hash is correct. Data from an earlier download is read again for its hash, not
downloaded again.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from engine.errors import DownloadError
from engine.files import open_locked, open_regular, write_all

MOST_BYTES_OF_NAME = 200
"""Maximum bytes of one path component; file systems allow 255, and the name of a partial file needs some extra."""

_BLOCK = 1 << 20

Tell = Callable[[int], None]
"""Callback with the bytes read so far."""


@dataclass(frozen=True)
class RemoteFile:
    """File elsewhere, such as in a repository; `size` in bytes.

    sha256 is empty for small files that a repository stores in git itself, which are known by git_id.
    """

    path: str
    size: int
    sha256: str
    git_id: str

    @property
    def digest(self) -> str:
        """Expected digest of `hasher`, in hexadecimal digits."""
        return self.sha256 or self.git_id

    def hasher(self) -> "hashlib._Hash":
        """Return a hash to update with the file's bytes: SHA-256, or git's blob SHA-1, its header already hashed."""
        if self.sha256:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)


class BeingWritten(DownloadError):
    """Another download or transfer writes the same file at this moment."""


class Incoming:
    """File being downloaded, possibly still empty; `kept` is the file from `locked`, `tell` a progress callback."""

    def __init__(self, file: RemoteFile, kept: BinaryIO, tell: Tell) -> None:
        self.num_bytes = 0
        self._file, self._kept = file, kept
        self._hasher = file.hasher()
        there = os.fstat(kept.fileno()).st_size
        if there > file.size:
            kept.truncate(there := 0)
        for block in _blocks(kept, there):
            self._hasher.update(block)
            self.num_bytes += len(block)
            tell(self.num_bytes)

    def start_over(self) -> None:
        """Discard all data received so far."""
        self._kept.seek(0)
        self._kept.truncate()
        self.num_bytes, self._hasher = 0, self._file.hasher()

    def take(self, block: bytes) -> None:
        """Append a block; raises DownloadError, and discards all data, when the file's size is exceeded."""
        if self.num_bytes + len(block) > self._file.size:
            self.start_over()
            raise DownloadError(
                f"{self._file.path}: more than its {self._file.size:,} bytes arrived; they were discarded. Try again."
            )
        write_all(self._kept, block)
        self._hasher.update(block)
        self.num_bytes += len(block)

    def sync(self) -> None:
        """Wait until the disk has what was received."""
        os.fsync(self._kept.fileno())

    def finish(self, path: Path) -> None:
        """Rename the file to its final path; raises DownloadError, and discards all data, when its hash is wrong."""
        came = self._hasher.hexdigest()
        if came != self._file.digest:
            self.start_over()
            raise DownloadError(
                f"{self._file.path} has the wrong checksum ({came[:12]}…, not {self._file.digest[:12]}…), so "
                "it was discarded. Try again; if that fails too, try another mirror or network."
            )
        self.sync()
        os.replace(partial_path(path, self._file), path)


def is_safe_name(name: str) -> bool:
    """Return whether a path component names an entry of its folder and is printable and short enough."""
    return (
        name not in ("", ".", "..")
        and "/" not in name
        and "\\" not in name
        and name.isprintable()
        and len(name.encode()) <= MOST_BYTES_OF_NAME
    )


def partial_path(path: Path, file: RemoteFile) -> Path:
    """Return the path of a file until it is complete; `path` is its final path."""
    return path.with_name(f".{path.name}.{file.digest[:12]}.partial")


@contextmanager
def locked(path: Path, file: RemoteFile) -> Iterator[BinaryIO]:
    """Open and lock the partial file, unbuffered, for this download alone; removed afterwards where it is empty.

    Raises BeingWritten while another download of the same file, in any process, holds the lock.
    """
    kept_at = partial_path(path, file)
    try:
        opened = open_locked(kept_at)
    except BlockingIOError as error:
        raise BeingWritten(f"{path} is already being downloaded. Wait for that download, or stop it.") from error
    with opened as kept:
        try:
            yield kept
        finally:
            if os.fstat(kept.fileno()).st_size == 0:
                kept_at.unlink(missing_ok=True)


def is_complete(path: Path, file: RemoteFile, tell: Tell) -> bool:
    """Return True when the file exists at its final path with the correct hash."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    hasher, num_bytes = file.hasher(), 0
    with open_regular(path) as there:
        for block in _blocks(there, file.size):
            hasher.update(block)
            num_bytes += len(block)
            tell(num_bytes)
    return hasher.hexdigest() == file.digest


def _blocks(file: BinaryIO, num_bytes: int) -> Iterator[bytes]:
    """Yield the next `num_bytes` of a file, or fewer where it ends before."""
    while num_bytes and (block := file.read(min(_BLOCK, num_bytes))):
        yield block
        num_bytes -= len(block)
