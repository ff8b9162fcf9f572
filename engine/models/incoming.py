"""Partial file of a download: written and hashed at the same time.

It is stored next to its final path under a hidden name that ends in .partial and contains the start of its hash, and is
renamed only when it is complete and the hash is correct. Data from an earlier download is read again for its hash, not
downloaded again.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from engine.errors import DownloadError
from engine.files import open_partial, open_regular, write_all
from engine.models.hub import RemoteFile

_BLOCK = 1 << 20

Tell = Callable[[int], None]
"""Callback with the bytes read so far."""


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

    def finish(self, path: Path) -> None:
        """Rename the file to its final path; raises DownloadError, and discards all data, when its hash is wrong."""
        came = self._hasher.hexdigest()
        if came != self._file.digest:
            self.start_over()
            raise DownloadError(
                f"{self._file.path} has the wrong checksum ({came[:12]}…, not {self._file.digest[:12]}…), so "
                "it was discarded. Try again; if that fails too, try another mirror or network."
            )
        os.fsync(self._kept.fileno())
        os.replace(partial_path(path, self._file), path)


def partial_path(path: Path, file: RemoteFile) -> Path:
    """Return the path of a file until it is complete; `path` is its final path."""
    return path.with_name(f".{path.name}.{file.digest[:12]}.partial")


@contextmanager
def locked(path: Path, file: RemoteFile) -> Iterator[BinaryIO]:
    """Open and lock the partial file, unbuffered, for this download alone; removed afterwards where it is empty.

    Raises DownloadError while another download of the same file, in any process, holds the lock.
    """
    kept_at = partial_path(path, file)
    with open_partial(kept_at) as kept:
        try:
            fcntl.flock(kept, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DownloadError(f"{path} is already being downloaded. Wait for that download, or stop it.") from error
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
