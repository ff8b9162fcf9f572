"""The history of trials: one file, one owner, one thread that writes, any number that read."""

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

import duckdb

from engine.errors import HistoryError
from engine.history import columns, database, export
from engine.history.trials import TrialRecord, TrialSummary, as_uuid
from engine.vocabulary import Vocabulary

T = TypeVar("T")
log = logging.getLogger(__name__)

OUTPUT_CHARACTERS = 200
LOG_BYTES = 16 << 20  # of the write-ahead log, before it is moved into the file

_open_paths: set[Path] = set()
_open_paths_lock = threading.Lock()


class History:
    """Trials kept in one DuckDB file, which this process owns until `close`.

    All methods may be called from any thread. `record` returns at once; what it was given is on disk when its future is
    done, and is kept whole or not at all. A trial that is already kept is not kept again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = database.connect(path)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="history-writer")
        self._is_broken = False
        self._checkpoint_at = LOG_BYTES
        self._no_readers = threading.Condition()
        self._num_readers = 0
        self._vocabularies: dict[str, Vocabulary] = {}

    @classmethod
    def open(cls, path: Path) -> Self:
        """Own the file at `path`, made with its folder if it is not there; deleted trials are purged now.

        Raises HistoryLocked when a process (this one included) has it open, HistoryNewer when a newer version wrote it,
        HistoryError when it is damaged or cannot be written. The file is never overwritten.
        """
        path = path.resolve()
        with _open_paths_lock:
            # DuckDB would share the file within one process, and with it the lock.
            if path in _open_paths:
                raise database.locked(path, os.getpid())
            history = cls(path)
            _open_paths.add(path)
        try:
            history.gc()
        except HistoryError as error:
            log.warning("Deleted trials could not be purged: %s", error)
        return history

    def close(self) -> None:
        """Write what is queued, then let go of the file. Closing twice does nothing more."""
        self._writer.shutdown(wait=True)
        with self._quiet():
            self._connection.close()
        with _open_paths_lock:
            _open_paths.discard(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, trial: TrialRecord) -> Future[None]:
        """Queue a trial to be kept; the future fails with HistoryError when the disk is full or the file unusable."""
        return self._queue(lambda cursor: self._insert(cursor, trial))

    def delete(self, id: str) -> bool:
        """Hide a trial until `restore`, or until the next open purges it; False when there is no such trial."""
        return self._set_deleted(id, datetime.now(UTC).replace(tzinfo=None))

    def restore(self, id: str) -> bool:
        """Undo `delete`; False when there is no such trial any more."""
        return self._set_deleted(id, None)

    def gc(self) -> int:
        """Purge deleted trials, and tokenizers that no trial needs; gives the number of trials purged."""
        return self._queue(_purge).result()

    def recent(self, limit: int = 20) -> list[TrialSummary]:
        """The latest trials, newest first."""
        with self._reading() as cursor:
            rows = _rows(
                cursor.execute(
                    "SELECT * REPLACE (text[1:?] AS text) FROM trials WHERE deleted_at IS NULL "
                    "ORDER BY created_at DESC, id DESC LIMIT ?",
                    [OUTPUT_CHARACTERS, limit],
                )
            )
        return [columns.summary_of(row) for row in rows]

    def trial(self, id: str) -> TrialRecord | None:
        """A trial with all its steps; None when there is none, or it is deleted."""
        uuid = as_uuid(id)
        if uuid is None:
            return None
        with self._reading() as cursor:
            rows = _rows(cursor.execute("SELECT * FROM trials WHERE id = ? AND deleted_at IS NULL", [uuid]))
            if not rows:
                return None
            vocabulary = self._vocabulary(cursor, rows[0]["tokenizer"])
            prompt_steps, steps = (
                columns.step_table(
                    cursor.sql(
                        "SELECT * FROM steps WHERE trial_id = ? AND is_prompt = ? ORDER BY position",
                        params=[uuid, is_prompt],
                    ).to_arrow_table(),
                    vocabulary,
                    is_prompt=is_prompt,
                )
                for is_prompt in (True, False)
            )
        return columns.trial_of(rows[0], prompt_steps, steps)

    def export_json(self, id: str) -> bytes:
        """The whole trial as JSON, see `engine.jsonable`; raises HistoryError when there is none."""
        return export.to_json(self._existing(id))

    def export_csv(self, id: str) -> bytes:
        """The trial's steps as CSV, a row a step; raises HistoryError when there is none."""
        return export.to_csv(self._existing(id))

    def _existing(self, id: str) -> TrialRecord:
        trial = self.trial(id)
        if trial is None:
            raise HistoryError(f"There is no trial {id!r} in this history: it was deleted, or never kept.")
        return trial

    def _vocabulary(self, cursor: duckdb.DuckDBPyConnection, hash: str) -> Vocabulary:
        if hash not in self._vocabularies:
            (row,) = _rows(cursor.execute("SELECT * FROM tokenizers WHERE hash = ?", [hash]))
            self._vocabularies[hash] = columns.vocabulary_of(row)
        return self._vocabularies[hash]

    def _insert(self, cursor: duckdb.DuckDBPyConnection, trial: TrialRecord) -> None:
        if cursor.execute("SELECT 1 FROM trials WHERE id = ?", [trial.id]).fetchone():
            return
        vocabulary = trial.completion.steps.vocabulary
        if not cursor.execute("SELECT 1 FROM tokenizers WHERE hash = ?", [vocabulary.hash]).fetchone():
            _insert_row(cursor, "tokenizers", columns.tokenizer_row(vocabulary))
        _insert_row(cursor, "trials", columns.trial_row(trial))
        for chunk in columns.step_rows(trial):
            cursor.register("chunk", chunk)
            cursor.execute("INSERT INTO steps BY NAME SELECT * FROM chunk")
            cursor.unregister("chunk")

    def _set_deleted(self, id: str, when: datetime | None) -> bool:
        uuid = as_uuid(id)

        def update(cursor: duckdb.DuckDBPyConnection) -> bool:
            changed = cursor.execute("UPDATE trials SET deleted_at = ? WHERE id = ?", [when, uuid])
            return changed.fetchone() != (0,)

        return uuid is not None and self._queue(update).result()

    # Writing: one thread, one transaction a job.

    def _queue(self, job: Callable[[duckdb.DuckDBPyConnection], T]) -> Future[T]:
        try:
            return self._writer.submit(self._write, job)
        except RuntimeError:
            raise HistoryError(f"The history {self.path} is closed; open it again.") from None

    def _write(self, job: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        try:
            if self._is_broken:
                self._reopen()
            result = self._transact(job)
        except (duckdb.Error, OSError) as error:
            self._after(error)
            raise database.explain(error, self.path) from error
        self._checkpoint()
        return result

    def _transact(self, job: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
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
        """Move the log into the file when the log has grown and the disk has room; nothing is lost when that fails."""
        try:
            num_bytes = Path(f"{self.path}.wal").stat().st_size
            if num_bytes > self._checkpoint_at and shutil.disk_usage(self.path.parent).free > num_bytes:
                with self._connection.cursor() as cursor:
                    self._checkpoint_at = num_bytes + LOG_BYTES  # not again with each write when this one fails
                    cursor.execute("CHECKPOINT")
                self._checkpoint_at = LOG_BYTES
        except FileNotFoundError:
            return
        except (duckdb.Error, OSError) as error:
            log.warning("The log of the history was not moved into its file: %s", error)
            self._after(error)

    def _after(self, error: Exception) -> None:
        """DuckDB refuses all work after a fatal error, until the file is opened anew."""
        self._is_broken = isinstance(error, duckdb.FatalException)
        if self._is_broken:
            with suppress(HistoryError):  # the next write tries again, and says why not
                self._reopen()

    def _reopen(self) -> None:
        with self._quiet():
            self._connection.close()
            self._connection = database.connect(self.path)
        self._is_broken = False

    # Reading: a cursor for each read; the connection is only replaced while nobody reads.

    @contextmanager
    def _reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._no_readers:
            self._num_readers += 1
        try:
            with self._connection.cursor() as cursor:
                cursor.begin()
                yield cursor
        except (duckdb.Error, OSError) as error:
            raise database.explain(error, self.path) from error
        finally:
            with self._no_readers:
                self._num_readers -= 1
                self._no_readers.notify_all()

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        with self._no_readers:
            self._no_readers.wait_for(lambda: self._num_readers == 0)
            yield


def _insert_row(cursor: duckdb.DuckDBPyConnection, table: str, row: dict[str, Any]) -> None:
    names, marks = ", ".join(row), ", ".join("?" * len(row))
    cursor.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(row.values()))


def _rows(result: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def _purge(cursor: duckdb.DuckDBPyConnection) -> int:
    doomed = [id for (id,) in cursor.execute("SELECT id FROM trials WHERE deleted_at IS NOT NULL").fetchall()]
    if doomed:
        cursor.execute("DELETE FROM steps WHERE trial_id IN (SELECT id FROM trials WHERE deleted_at IS NOT NULL)")
        cursor.execute("DELETE FROM trials WHERE deleted_at IS NOT NULL")
        cursor.execute("DELETE FROM tokenizers WHERE hash NOT IN (SELECT tokenizer FROM trials)")
    return len(doomed)
