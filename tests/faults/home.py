"""The folder of everything written, on a disk that can be filled up or made read-only at will.

As root it is a tmpfs of its own; where none can be mounted, the limit on a file's size and the folder's mode stand in
for it. `mechanism` says which.
"""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

MEGABYTES = 384
BALLOON = "balloon"


class Home:
    """A folder on a small disk of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self._is_mounted = os.geteuid() == 0 and _mount("-t", "tmpfs", "-o", f"size={MEGABYTES}m", "none", path)
        self.mechanism = (
            f"full and read-only disks by a tmpfs of {MEGABYTES} MB and a read-only mount of it"
            if self._is_mounted
            else "full disks by RLIMIT_FSIZE, read-only ones by the folder's mode: no tmpfs can be mounted here"
        )

    @contextmanager
    def full(self, app: psutil.Process) -> Iterator[None]:
        """No byte fits any more while the block lasts."""
        if not self._is_mounted:
            with _small_files(app, 0):
                yield
            return
        balloon = self.path / BALLOON
        with balloon.open("wb") as file:
            for size in (1 << 20, 1 << 12):
                while _grows(file.fileno(), size):
                    pass
        try:
            yield
        finally:
            balloon.unlink()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Nothing new can be opened for writing in the folder while the block lasts; what is open stays so."""
        if not self._is_mounted:
            mode = self.path.stat().st_mode
            self.path.chmod(0o500)
            try:
                yield
            finally:
                self.path.chmod(mode)
            return
        if not (_mount("--bind", self.path, self.path) and _mount("-o", "remount,bind,ro", self.path)):
            raise OSError(f"{self.path} could not be made read-only")
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", self.path], check=True)

    def close(self) -> None:
        """Give the disk back."""
        if self._is_mounted:
            subprocess.run(["umount", "-l", self.path], check=False)


@contextmanager
def _small_files(app: psutil.Process, most: int) -> Iterator[None]:
    before = app.rlimit(resource.RLIMIT_FSIZE)
    app.rlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        if app.is_running():
            app.rlimit(resource.RLIMIT_FSIZE, before)


def _grows(file: int, size: int) -> bool:
    try:
        os.posix_fallocate(file, os.fstat(file).st_size, size)
    except OSError:
        return False
    return True


def _mount(*words: str | Path) -> bool:
    return subprocess.run(["mount", *words], capture_output=True, check=False).returncode == 0
