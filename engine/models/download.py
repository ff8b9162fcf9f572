"""Files of a repository fetched into a folder, beside whatever else runs: with progress, stopped and resumed."""

import errno
import math
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Self

from engine.errors import DownloadError, JobTimeout, NetworkError
from engine.models.hub import LARGEST_FILE, RemoteFile, Repository, opened
from engine.models.identity import keep_hash
from engine.models.incoming import Incoming, is_complete, locked, partial_path
from engine.units import quantity

State = Literal["waiting", "checking", "fetching", "retrying", "done", "stopped", "failed"]

WAITS_S = (1.0, 2.0, 4.0, 8.0, 8.0)
"""Seconds before each new try after a broken connection; counted anew as soon as a try brings anything."""

SPARE_BYTES = 64 << 20
"""Room that a download leaves on the disk."""

MOST_BYTES_OF_NAME = 200
"""Of one part of a path; file systems hold 255, of which the name of an incomplete file takes some."""

_RATE_OVER_S = 5.0


class Progress(NamedTuple):
    """How far a download is. Bytes are of all files, those that had come before included.

    bytes_per_s: of the last seconds, NaN while nothing comes. file: the one being fetched, as the repository names it.
    """

    state: State
    num_bytes: int
    total_bytes: int
    bytes_per_s: float = math.nan
    file: str = ""

    @property
    def share(self) -> float:
        """0 to 1."""
        return self.num_bytes / self.total_bytes if self.total_bytes else 1.0

    @property
    def left_s(self) -> float:
        """Seconds until all has come at this rate; NaN where it is not known."""
        return (self.total_bytes - self.num_bytes) / self.bytes_per_s if self.bytes_per_s else math.nan


class Download:
    """Fetches files of one repository in a thread of its own, into owner/name under `folder`. Any thread may call it.

    Another download of the same files goes on where this one stopped. Raises DownloadError for names that would lead
    out of the folder, and for files larger than the hub sends.
    """

    def __init__(
        self,
        repository: Repository,
        files: Sequence[RemoteFile],
        folder: str | Path,
        *,
        waits_s: Sequence[float] = WAITS_S,
    ) -> None:
        self.repository = repository
        self.folder = Path(folder)
        self.paths = tuple(_place(self.folder, repository, file) for file in files)
        self._files = tuple(files)
        self._waits_s = tuple(waits_s)
        self._stop, self._over = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="logitbench-download", daemon=True)
        self._came: deque[tuple[float, int]] = deque()
        with _disk_failures_said(self.folder):
            self.progress = Progress("waiting", self._num_kept(), sum(file.size for file in files))

    def start(self) -> Self:
        """Begin; once for each object."""
        self._thread.start()
        return self

    def cancel(self) -> None:
        """Stop as soon as the next bytes come, or do not; what has come is kept. Returns at once."""
        self._stop.set()

    def result(self, timeout: float | None = None) -> tuple[Path, ...]:
        """Wait for the end: where the files lie, in the order given. They hold what the hub's hashes say.

        Raises the DownloadError that ended it, also after `cancel`; JobTimeout when it goes on after `timeout` seconds.
        """
        if not self._over.wait(timeout):
            raise JobTimeout(f"{self.repository.name} was not downloaded in {timeout:g} s; the download goes on.")
        if self._error is not None:
            raise self._error
        return self.paths

    def discard(self) -> None:
        """Remove what had come of files that are not complete; only when it is not running."""
        with _disk_failures_said(self.folder):
            for file, path in zip(self._files, self.paths, strict=True):
                partial_path(path, file).unlink(missing_ok=True)

    def _run(self) -> None:
        try:
            with _disk_failures_said(self.folder):
                self._check_room()
                done = 0
                for file, path in zip(self._files, self.paths, strict=True):
                    self._get(file, path, done)
                    done += file.size
            self._tell("done", done)
        except Exception as error:
            self._error = error
            self.progress = self.progress._replace(
                state="stopped" if isinstance(error, _Stopped) else "failed", bytes_per_s=math.nan
            )
        finally:
            self._over.set()

    def _get(self, file: RemoteFile, path: Path, before: int) -> None:
        """Bring one file to its place; `before`: bytes of the files before it."""

        def tell(state: State, num_bytes: int) -> None:
            self._check_stopped()
            self._tell(state, before + num_bytes, file.path)

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
            self._check_stopped()
            had = incoming.num_bytes
            try:
                with opened(self.repository, file, had) as (begins, blocks):
                    if begins != had:
                        incoming.start_over()
                    for block in blocks:
                        incoming.take(block)
                        tell("fetching", incoming.num_bytes)
                if incoming.num_bytes < file.size:
                    raise NetworkError(f"The connection for {file.path} broke off.")
            except NetworkError as error:
                num_failed = 1 if incoming.num_bytes > had else num_failed + 1
                if num_failed > len(self._waits_s):
                    has = f"{quantity(incoming.num_bytes, 'B')} of {quantity(file.size, 'B')} of {file.path}"
                    raise NetworkError(f"{error} {has} have come and are kept; start it again to go on.") from error
                tell("retrying", incoming.num_bytes)
                self._stop.wait(self._waits_s[num_failed - 1])

    def _check_stopped(self) -> None:
        if self._stop.is_set():
            raise _Stopped(f"{self.repository.name}: stopped. What has come is kept; start it again to go on.")

    def _tell(self, state: State, num_bytes: int, file: str = "") -> None:
        now = time.monotonic()
        if state != "fetching":
            self._came.clear()
        else:
            self._came.append((now, num_bytes))
            while now - self._came[0][0] > _RATE_OVER_S and len(self._came) > 2:
                self._came.popleft()
        (start, first), (end, last) = (self._came[0], self._came[-1]) if self._came else ((now, 0), (now, 0))
        rate = (last - first) / (end - start) if end > start else math.nan
        self.progress = Progress(state, num_bytes, self.progress.total_bytes, rate, file)

    def _num_kept(self) -> int:
        """Bytes that need not be fetched any more."""
        return sum(
            file.size if _size(path) == file.size else min(_size(partial_path(path, file)), file.size)
            for file, path in zip(self._files, self.paths, strict=True)
        )

    def _check_room(self) -> None:
        needed = self.progress.total_bytes - self._num_kept()
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if needed and free < needed + SPARE_BYTES:
            raise DownloadError(
                f"{self.repository.name} needs {quantity(needed, 'B')} more on the disk of {self.folder}, and "
                f"{quantity(free, 'B')} are free. Nothing was fetched. Free some, or choose a smaller quantisation."
            )


class _Stopped(DownloadError):
    """A person stopped the download."""


def _place(folder: Path, repository: Repository, file: RemoteFile) -> Path:
    """Where a file is kept. Its name comes from a stranger."""
    parts = (*repository.name.split("/"), *file.path.split("/"))
    path = folder.joinpath(*parts)
    if not all(_is_safe(part) for part in parts) or not path.resolve().is_relative_to(folder.resolve()):
        raise DownloadError(f"{repository.name} has a file named {file.path!r}, which cannot be kept in {folder}.")
    if file.size > LARGEST_FILE:
        raise DownloadError(
            f"{file.path} has {quantity(file.size, 'B')}; the hub sends up to {quantity(LARGEST_FILE, 'B')} this way. "
            f"`hf download {repository.name} {file.path}` fetches it by another."
        )
    return path


def _is_safe(part: str) -> bool:
    """Whether one part of a path names one thing in its folder, and shows itself as what it is."""
    return (
        part not in ("", ".", "..")
        and "\\" not in part
        and part.isprintable()
        and len(part.encode()) <= MOST_BYTES_OF_NAME
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


@contextmanager
def _disk_failures_said(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DownloadError(
                f"The disk of {folder} is full. What has come is kept: free some room, then start it again to go on."
            ) from error
        raise DownloadError(f"{error.filename or folder} cannot be written ({error.strerror}).") from error
