"""Many rows on their way into one table, of which only a piece is held in memory."""

from collections.abc import Callable, Iterator

import pyarrow as pa  # type: ignore[import-untyped]

from engine.history.owned_file import Cursor, insert_rows


class Arriving:
    """Rows of one table, given piece by piece to one statement: a transaction holds whatever its statements were given,
    so that one statement for each piece would hold them all."""

    def __init__(self, schema: pa.Schema, tables: Callable[[], Iterator[pa.Table]]) -> None:
        self._schema, self._tables = schema, tables
        self._failures: list[Exception] = []

    def insert(self, cursor: Cursor, table: str) -> None:
        """Insert what arrives."""
        try:
            insert_rows(cursor, table, pa.RecordBatchReader.from_batches(self._schema, self._batches()))
        except Exception:
            if self._failures:  # DuckDB tells it in its own words
                raise self._failures.pop() from None
            raise

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for table in self._tables():
                yield from table.to_batches()
        except Exception as error:
            self._failures.append(error)
            raise
