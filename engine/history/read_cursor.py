"""Read cursor: runs its statements on the reader threads of the file's owner."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import duckdb
import pyarrow as pa

T = TypeVar("T")

NUM_THREADS = 4


def reading_threads() -> ThreadPoolExecutor:
    """Create the thread pool for all reads of one file.

    DuckDB retains about 2 KB for each thread that ever called it, and a server has a new thread for each page view:
    with queries on those threads, a workbench in use grew by 20 MB per hour.
    """
    return ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="history-reader")


class ReadCursor:
    """A DuckDB cursor, used by one thread at a time; its methods mirror DuckDB's and raise the same errors."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, threads: ThreadPoolExecutor) -> None:
        self._cursor, self._threads = cursor, threads

    def begin(self) -> None:
        """Begin a transaction, which sees one consistent state of the database."""
        self._done(self._cursor.begin)

    def execute(self, query: str, parameters: object = None) -> Self:
        """Run a statement; its rows are fetched from this cursor."""
        self._done(lambda: self._cursor.execute(query, parameters))
        return self

    @property
    def description(self) -> list[tuple[str, Any, Any, Any, Any, Any, Any]] | None:
        """The columns of the result as tuples that begin with the name."""
        return self._cursor.description

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""
        return self._done(self._cursor.fetchall)

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row, None after the last."""
        return self._done(self._cursor.fetchone)

    def table(self, query: str, parameters: object = None) -> pa.Table:
        """Return the rows of a query as an Arrow table."""
        return self._done(lambda: self._cursor.sql(query, params=parameters).to_arrow_table())

    @contextmanager
    def batches(
        self, query: str, parameters: object, rows_at_once: int
    ) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        """Run a query; yields the schema and an iterator over batches of `rows_at_once`, each computed on demand."""
        reader = self._done(lambda: self._cursor.sql(query, params=parameters).to_arrow_reader(rows_at_once))
        try:
            yield reader.schema, iter(lambda: self._done(lambda: next(reader, None)), None)
        finally:
            self._done(reader.close)

    def interrupt(self) -> None:
        """Interrupt the running statement; may be called from any thread."""
        self._cursor.interrupt()

    def close(self) -> None:
        """Close the cursor."""
        self._done(self._cursor.close)

    def _done(self, work: Callable[[], T]) -> T:
        try:
            running = self._threads.submit(work)
        except RuntimeError as error:  # the file was closed
            raise duckdb.ConnectionException("Connection already closed") from error
        return running.result()
