"""Streaming insert: many rows into one table, of which only a piece is in memory at a time."""

from collections.abc import Callable, Iterator

import pyarrow as pa

from engine.history.database_writer import Cursor, insert_rows


class Arriving:
    """Rows of one table, streamed piece by piece into a single INSERT statement.

    A transaction holds on to the input of each of its statements, so one statement per piece would hold all rows.
    """

    def __init__(self, schema: pa.Schema, tables: Callable[[], Iterator[pa.Table]]) -> None:
        self._schema, self._tables = schema, tables
        self._failures: list[Exception] = []

    def insert(self, cursor: Cursor, table: str) -> None:
        """Insert all rows into `table`. An error raised by the source of the rows is re-raised unchanged."""
        try:
            insert_rows(cursor, table, pa.RecordBatchReader.from_batches(self._schema, self._batches()))
        except Exception:
            if self._failures:  # DuckDB wraps it in an error of its own
                raise self._failures.pop() from None
            raise

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for table in self._tables():
                yield from table.to_batches()
        except Exception as error:
            self._failures.append(error)
            raise
