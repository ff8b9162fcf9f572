"""Downloads of a repository's files into a folder, as tasks with progress, stop and resume."""

import errno
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from engine.errors import DownloadError, NetworkError
from engine.files import SPARE_BYTES
from engine.models.hub import LARGEST_FILE, Repository, opened
from engine.models.identity import keep_hash
from engine.models.incoming import Incoming, RemoteFile, is_complete, is_safe_name, locked, partial_path
from engine.tasks import Task
from engine.units import quantity

State = Literal["checking", "fetching", "retrying"]
_DOING: dict[State, str] = {
    "checking": "checking existing files", "fetching": "", "retrying": "connection lost, retrying"
}  # fmt: skip

WAITS_S = (1.0, 2.0, 4.0, 8.0, 8.0)
"""Seconds before each retry after a broken connection; the count restarts when a try receives any data."""

_RATE_OVER_S = 5.0


class Download(Task[tuple[Path, ...]]):
    """Download of files of one repository into owner/name under `folder`; its result is their paths, in given order.

    The content of each file is verified by the hub's hash. Where the download is stopped or fails, the partial data is
    stored, and another download of the same files resumes there. num_bytes: downloaded of all files, including earlier
    downloads. Raises DownloadError for names that would lead out of the folder, and for files larger than the hub sends
    over HTTP.
    """

    def __init__(
        self,
        repository: Repository,
        files: Sequence[RemoteFile],
        folder: str | Path,
        *,
        waits_s: Sequence[float] = WAITS_S,
    ) -> None:
        super().__init__(repository.name, lambda _task: self._fetch_all())
        self.repository = repository
        self.folder = Path(folder)
        self.paths = tuple(_place(self.folder, repository, file) for file in files)
        self._files = tuple(files)
        self._waits_s = tuple(waits_s)
        self._came: deque[tuple[float, int]] = deque()
        self.total_bytes = sum(file.size for file in files)
        with _disk_failures_said(self.folder):
            self.num_bytes = self._num_kept()

    def discard(self) -> None:
        """Remove the partial data of incomplete files; only while the download is not running."""
        with _disk_failures_said(self.folder):
            for file, path in zip(self._files, self.paths, strict=True):
                partial_path(path, file).unlink(missing_ok=True)

    def _fetch_all(self) -> tuple[Path, ...]:
        with _disk_failures_said(self.folder):
            self._check_room()
            done = 0
            for file, path in zip(self._files, self.paths, strict=True):
                self._get(file, path, done)
                done += file.size
        return self.paths

    def _get(self, file: RemoteFile, path: Path, before: int) -> None:
        """Download one file to its path; `before`: bytes of the files before it."""

        def tell(state: State, num_bytes: int) -> None:
            self._tell(state, before + num_bytes)

        tell_checked = partial(tell, "checking")
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path, file) as kept:
            if not is_complete(path, file, tell_checked):
                incoming = Incoming(file, kept, tell_checked)
                self._fetch(file, incoming, tell)
                incoming.finish(path)
        if file.sha256:
            keep_hash(path, file.sha256)

    def _fetch(self, file: RemoteFile, incoming: Incoming, tell: Callable[[State, int], None]) -> None:
        num_failed = 0
        while incoming.num_bytes < file.size:
            self.check()
            had = incoming.num_bytes
            try:
                with opened(self.repository, file, had) as (begins, blocks):
                    if begins != had:
                        incoming.start_over()
                    for block in blocks:
                        incoming.take(block)
                        tell("fetching", incoming.num_bytes)
                if incoming.num_bytes < file.size:
                    raise NetworkError(f"The connection for {file.path} was lost.")
            except NetworkError as error:
                num_failed = 1 if incoming.num_bytes > had else num_failed + 1
                if num_failed > len(self._waits_s):
                    has = f"{quantity(incoming.num_bytes, 'B')} of {quantity(file.size, 'B')} of {file.path}"
                    raise NetworkError(f"{error} {has} are saved; start it again to resume.") from error
                tell("retrying", incoming.num_bytes)
                self.sleep(self._waits_s[num_failed - 1])

    def check(self) -> None:
        """Raise DownloadError where a stop was requested."""
        if self.is_stopped:
            raise DownloadError(
                f"{self.repository.name}: stopped. The downloaded part is saved; start it again to resume."
            )

    def _tell(self, state: State, num_bytes: int) -> None:
        now = time.monotonic()
        if state != "fetching":
            self._came.clear()
        else:
            self._came.append((now, num_bytes))
            while now - self._came[0][0] > _RATE_OVER_S and len(self._came) > 2:
                self._came.popleft()
        self.num_bytes = num_bytes
        come = f"{quantity(num_bytes, 'B')} of {quantity(self.total_bytes, 'B')}" if self.total_bytes else ""
        doing = " · ".join(part for part in (_DOING[state], come) if part)
        self.update(num_bytes / self.total_bytes if self.total_bytes else 0.0, doing, self._left_s())

    def _left_s(self) -> float | None:
        """Return the seconds left at the rate of the last seconds; None while no data arrives."""
        (start, first), (end, last) = (self._came[0], self._came[-1]) if self._came else ((0.0, 0), (0.0, 0))
        return (self.total_bytes - last) * (end - start) / (last - first) if last > first else None

    def _num_kept(self) -> int:
        """Return the bytes that are already on the disk."""
        return sum(
            file.size if _size(path) == file.size else min(_size(partial_path(path, file)), file.size)
            for file, path in zip(self._files, self.paths, strict=True)
        )

    def _check_room(self) -> None:
        needed = self.total_bytes - self._num_kept()
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if needed and free < needed + SPARE_BYTES:
            raise DownloadError(
                f"{self.repository.name} needs {quantity(needed, 'B')} more on the disk of {self.folder}; "
                f"{quantity(free, 'B')} is free. Nothing was downloaded. Free some space, or choose a smaller "
                "quantisation."
            )


def _place(folder: Path, repository: Repository, file: RemoteFile) -> Path:
    """Return the path at which a file is stored, checked because its name is untrusted."""
    parts = (*repository.name.split("/"), *file.path.split("/"))
    path = folder.joinpath(*parts)
    if not all(is_safe_name(part) for part in parts) or not path.resolve().is_relative_to(folder.resolve()):
        raise DownloadError(f"{repository.name} has a file named {file.path!r}, which cannot be saved in {folder}.")
    if file.size > LARGEST_FILE:
        raise DownloadError(
            f"{file.path} is {quantity(file.size, 'B')}; the hub sends up to {quantity(LARGEST_FILE, 'B')} over HTTP. "
            f"Download it with `hf download {repository.name} {file.path}`."
        )
    return path


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


@contextmanager
def _disk_failures_said(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DownloadError(
                f"The disk of {folder} is full. The downloaded part is saved: free some space, then start it again "
                "to resume."
            ) from error
        raise DownloadError(f"{error.filename or folder} cannot be written ({error.strerror}).") from error
