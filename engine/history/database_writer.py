"""Database writer: the DuckDB file that this process owns, with one writer thread and any number of readers."""

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import duckdb
import pyarrow as pa

from engine.errors import HistoryError
from engine.history import database
from engine.history.read_cursor import ReadCursor, reading_threads

T = TypeVar("T")
Cursor = duckdb.DuckDBPyConnection
log = logging.getLogger(__name__)

READS_PER_RELEASE = 256  # reads between two releases of memory, each of which takes up to 40 ms
LOG_BYTES = 16 << 20  # size of the write-ahead log from which it is checkpointed
READERS_S = 1.0  # from an interrupt until all reads should have ended
REOPENED_S = 5.0  # that a read waits for the file to be reopened
_INSERT = {False: "INSERT", True: "INSERT OR REPLACE"}

_open_paths: set[Path] = set()
_open_paths_lock = threading.Lock()


class DatabaseWriter:
    """Owner of the file and its connection. All methods may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = database.connect(path)
        self._place = _place_of(path)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="history-writer")
        self.version = 0
        """Counter of writes: equal numbers mean equal contents."""
        self._is_broken = False
        self._checkpoint_at = LOG_BYTES
        self._no_readers = threading.Condition()
        self._readers: set[ReadCursor] = set()
        self._reading = reading_threads()
        self._num_reads = 0
        self.is_closing = False
        """True once `close` was called: long reads stop then."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open and own the file at `path`, created with its folder if it does not exist.

        Raises HistoryLocked when a process (this one included) has it open, HistoryNewer when a newer version wrote it,
        HistoryError when it is damaged or cannot be written. An existing file is never overwritten.
        """
        path = path.resolve()
        with _open_paths_lock:
            # Within one process, DuckDB would share the file and its lock.
            if path in _open_paths:
                raise database.locked(path, os.getpid())
            opened = cls(path)
            _open_paths.add(path)
        return opened

    def close(self, within_s: float | None = None) -> None:
        """Finish queued writes, interrupt reads, then close the file. Closing it again has no effect.

        A file that is still being written after `within_s` seconds, or read after READERS_S, stays open until this
        process ends.
        """
        self.is_closing = True
        with suppress(HistoryError):  # already closed
            last = self._queue(lambda: None)
            self._writer.shutdown(wait=False)
            try:
                last.result(within_s)
            except TimeoutError:
                log.warning("The history was not closed: it is still being written. Acknowledged writes are saved.")
                return
        with self._quiet() as is_quiet:
            if not is_quiet:
                log.warning("The history was not closed: it is still being read.")
                return
            self._connection.close()
        self._reading.shutdown(wait=False)
        with _open_paths_lock:
            _open_paths.discard(self.path)

    # Writing: one thread, one transaction per job.

    def write(self, job: Callable[[Cursor], T]) -> Future[T]:
        """Queue a job; its changes are on disk when the future is done, and rolled back if it fails (HistoryError)."""
        return self._queue(self._write, job)

    def check_place(self) -> None:
        """Raise HistoryError where another program has removed or replaced the file: what is written would be lost."""
        if _place_of(self.path) != self._place:
            raise HistoryError(
                f"The history {self.path} was removed or replaced by another program, so nothing more is saved in it. "
                "Put the file back; or export what you need, as all of it can still be read, and restart."
            )

    def _write(self, job: Callable[[Cursor], T]) -> T:
        self.check_place()
        try:
            if self._is_broken:
                self._reopen()
            result = self._transact(job)
        except (duckdb.Error, OSError) as error:
            self._after(error)
            raise database.explain(error, self.path) from error
        finally:
            self.version += 1  # also on failure: the outcome of a failed commit is unknown
        self._checkpoint()
        return result

    def while_still(self, job: Callable[[], T]) -> Future[T]:
        """Queue a job during which nothing is written: the file and its log on disk form one consistent state.

        The job must not open the file in this process: closing it again would drop DuckDB's lock.
        """
        return self._queue(job)

    def _queue(self, job: Callable[..., T], *arguments: Any) -> Future[T]:
        try:
            return self._writer.submit(job, *arguments)
        except RuntimeError:
            raise HistoryError(f"The history {self.path} is closed; open it again.") from None

    def _transact(self, job: Callable[[Cursor], T]) -> T:
        with self._connection.cursor() as cursor:
            cursor.begin()
            try:
                result = job(cursor)
                cursor.commit()
            except BaseException:
                with suppress(duckdb.Error):  # a failed commit has ended the transaction already
                    cursor.rollback()
                raise
        return result

    def _checkpoint(self) -> None:
        """Checkpoint the write-ahead log once it is large, if the disk allows it; a failure loses no data."""
        try:
            num_bytes = Path(f"{self.path}.wal").stat().st_size
            if num_bytes > self._checkpoint_at and self._has_room(num_bytes):
                with self._connection.cursor() as cursor:
                    self._checkpoint_at = num_bytes + LOG_BYTES  # if this one fails, not retried with every write
                    cursor.execute("CHECKPOINT")
                self._checkpoint_at = LOG_BYTES
        except FileNotFoundError:
            return
        except (duckdb.Error, OSError) as error:
            log.warning("The history could not be checkpointed: %s", error)
            self._after(error)

    def _has_room(self, num_bytes: int) -> bool:
        """Return whether the folder is writable with `num_bytes` free: a failed checkpoint invalidates the database."""
        folder = self.path.parent
        return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > num_bytes

    def _after(self, error: Exception) -> None:
        """Reopen the file after a fatal error, until when DuckDB refuses all work."""
        self._is_broken = isinstance(error, duckdb.FatalException)
        if self._is_broken:
            with suppress(HistoryError):  # the next use tries again, and reports the failure
                self._reopen()

    def _mend(self) -> None:
        if self._is_broken:
            self._reopen()

    def _reopen(self) -> None:
        self.check_place()
        with self._quiet() as is_quiet:
            if not is_quiet:
                raise HistoryError(f"The history {self.path} must be reopened, but is still being read. Try again.")
            self._connection.close()
            self._connection = database.connect(self.path)
        self._is_broken = False

    def _release_memory(self) -> None:
        with self._no_readers:
            if self._num_reads < READS_PER_RELEASE or self._readers:
                return  # already done, or left to the next read
            self._num_reads = 0
            with suppress(duckdb.Error):  # the next use of the file reports the failure
                database.release_memory(self._connection)

    # Reading: a cursor per read; the connection is only replaced while there are no readers.

    @contextmanager
    def reading(self, *, is_large: bool = False) -> Iterator[ReadCursor]:
        """Open a cursor that sees one consistent state of the file; failures are raised as HistoryError.

        is_large: for large reads such as an export, which fill memory with blocks of the file, released afterwards.
        """
        try:
            cursor = self._begin_reading(READS_PER_RELEASE if is_large else 1)
            try:
                with closing(cursor):
                    yield cursor
            finally:
                self._end_reading(cursor)
                if self._num_reads >= READS_PER_RELEASE:
                    with suppress(HistoryError):  # closed in the meantime
                        self._queue(self._release_memory)
        except (duckdb.Error, OSError) as error:
            raise database.explain(error, self.path) from error

    def _begin_reading(self, weight: int) -> ReadCursor:
        """Return a cursor in a transaction; reopens the file where a fatal error has invalidated the connection."""
        try:
            return self._begin_once(weight)
        except (duckdb.FatalException, duckdb.ConnectionException):
            mending = self._queue(self._mend)
        try:
            mending.result(REOPENED_S)
        except TimeoutError:
            raise HistoryError(f"The history {self.path} is being reopened. Try again.") from None
        return self._begin_once(weight)

    def _begin_once(self, weight: int) -> ReadCursor:
        with self._no_readers:
            connection = self._connection
            cursor = ReadCursor(connection.cursor(), self._reading)
            self._readers.add(cursor)
            self._num_reads += weight
        try:
            cursor.begin()
        except BaseException as error:
            self._end_reading(cursor)
            cursor.close()
            with self._no_readers:
                self._is_broken |= isinstance(error, duckdb.FatalException) and connection is self._connection
            raise
        return cursor

    def _end_reading(self, cursor: ReadCursor) -> None:
        with self._no_readers:
            self._readers.discard(cursor)
            self._no_readers.notify_all()

    @contextmanager
    def _quiet(self) -> Iterator[bool]:
        """Interrupt all reads and block new ones; yields whether all have ended within READERS_S."""
        end = time.monotonic() + READERS_S
        with self._no_readers:
            while self._readers and time.monotonic() < end:
                for cursor in self._readers:
                    with suppress(duckdb.Error):  # it was closed since
                        cursor.interrupt()
                self._no_readers.wait(0.05)  # repeated: a reader between two queries is not interrupted
            yield not self._readers


def _place_of(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_owned_here(path: Path) -> bool:
    """Return whether this process owns the file."""
    with _open_paths_lock:
        return path.resolve() in _open_paths


def insert_row(cursor: Cursor, table: str, row: dict[str, Any], *, replaces: bool = False) -> None:
    """Insert one row given by column; with `replaces`, it replaces a row with the same key."""
    names, marks = ", ".join(row), ", ".join("?" * len(row))
    cursor.execute(f"{_INSERT[replaces]} INTO {table} ({names}) VALUES ({marks})", list(row.values()))


def insert_rows(cursor: Cursor, table: str, rows: pa.Table | pa.RecordBatchReader, *, replaces: bool = False) -> None:
    """Insert Arrow rows by column name; `replaces` as in `insert_row`."""
    cursor.register("arriving", rows)
    cursor.execute(f"{_INSERT[replaces]} INTO {table} BY NAME SELECT * FROM arriving")
    cursor.unregister("arriving")


def fetch(result: Cursor | ReadCursor) -> list[dict[str, Any]]:
    """Return all rows of a result, each as a dictionary by column."""
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def is_changed(result: Cursor) -> bool:
    """Return whether an UPDATE or a DELETE matched a row."""
    return result.fetchall() != [(0,)]
