"""SQL for people: one statement that only reads, on the owner's own connection, bounded in time, rows and bytes."""

import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]

from engine.errors import ConfigError, HistoryError
from engine.history.checks import checked_text
from engine.history.console_help import COMMENTS, READY
from engine.history.console_limits import check_functions
from engine.history.owned_file import Cursor, OwnedFile

__all__ = ["READY", "Column", "Console", "Result"]

MOST_ROWS = 10_000
MOST_BYTES = 20_000_000
MOST_CHARACTERS = 100_000
MOST_S = 60.0
BATCH = 2048
READING = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)


class Column(NamedTuple):
    """One column of a table: its name, DuckDB's type, what it means (may be empty)."""

    name: str
    type: str
    comment: str


class Result(NamedTuple):
    """What a statement gave: names and DuckDB's types of the columns, and the rows as Arrow.

    why_truncated says which bound the rows met, empty where all are there. elapsed_s: seconds from start to last row.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]
    table: pa.Table
    num_rows: int
    is_truncated: bool
    why_truncated: str
    elapsed_s: float


class Console:
    """Runs a person's SQL where it can change nothing. May be called from any thread."""

    def __init__(self, file: OwnedFile) -> None:
        self._file = file

    def run(self, sql: str, *, limit: int = MOST_ROWS, timeout_s: float = 2.0) -> Result:
        """The rows of one SELECT, EXPLAIN or DESCRIBE: up to `limit` of them, and up to 20 MB.

        Raises ConfigError with the reason for a statement that is wrong, that writes or reads files, for several of
        them, and for one that takes longer than `timeout_s` seconds or more memory than the history may use;
        HistoryError where the history itself cannot be read.
        """
        _check(sql, limit, timeout_s)
        try:
            with self._file.reading() as cursor, _told(timeout_s):
                statement = _only_statement(cursor, sql)
                check_functions(sql, _table_functions(cursor))
                with _read_only(cursor), _ended_after(cursor, timeout_s):
                    return _result(cursor, statement, limit)
        except HistoryError:
            # A fatal failure closes the database to everyone until a write opens it anew.
            self._file.write(lambda _: None)
            raise

    def schema(self) -> dict[str, list[Column]]:
        """Every table with its columns, in their order."""
        with self._file.reading() as cursor:
            rows = cursor.execute(
                "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal "
                "ORDER BY table_name, column_index"
            ).fetchall()
        tables: dict[str, list[Column]] = {}
        for table, name, kind in rows:
            tables.setdefault(table, []).append(Column(name, kind, COMMENTS.get((table, name), "")))
        return tables


def _check(sql: str, limit: int, timeout_s: float) -> None:
    checked_text("query", sql, MOST_CHARACTERS)
    if not 1 <= limit <= MOST_ROWS:
        raise ConfigError(f"limit = {limit}: must be a whole number from 1 to {MOST_ROWS:,}")
    if not 0 < timeout_s <= MOST_S:
        raise ConfigError(f"timeout_s = {timeout_s}: must be a number above 0, up to {MOST_S:g}")


def _only_statement(cursor: Cursor, sql: str) -> duckdb.Statement:
    statements = cursor.extract_statements(sql)
    if len(statements) != 1:
        raise ConfigError(f"The console runs one statement at a time, and this text holds {len(statements)}.")
    (statement,) = statements
    if statement.type not in READING:
        raise ConfigError(
            f"The console only reads: SELECT, EXPLAIN or DESCRIBE. This is {statement.type.name.replace('_', ' ')}."
        )
    if statement.named_parameters:
        raise ConfigError("The query has places for values (? or $name): write the values themselves.")
    return statement


def _table_functions(cursor: Cursor) -> list[str]:
    query = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'table'"
    return [name for (name,) in cursor.execute(query).fetchall()]


@contextmanager
def _told(timeout_s: float) -> Iterator[None]:
    """Makes a failure of the statement, not of the file, a ConfigError with its reason."""
    try:
        yield
    except (duckdb.FatalException, duckdb.InternalException):
        raise
    except duckdb.Error as error:
        raise ConfigError(_reason(error, timeout_s)) from error


def _reason(error: duckdb.Error, timeout_s: float) -> str:
    text = str(error).strip()
    if isinstance(error, duckdb.InterruptException):
        return (
            f"The query was stopped after {timeout_s:g} s, which is all it may take. Ask for less: a condition on "
            "run_id or created_at, a join on the keys of both tables."
        )
    if isinstance(error, duckdb.OutOfMemoryException):
        return f"The query needs more memory than the history may use. Ask for fewer rows or columns. ({text})"
    if isinstance(error, duckdb.PermissionException):
        return f"The console reaches no files, settings or other databases, only the tables of the history. ({text})"
    if "read-only" in text:
        return f"The console only reads, and this would write. ({text})"
    return text


@contextmanager
def _read_only(cursor: Cursor) -> Iterator[None]:
    """A transaction in which nothing can be written, rolled back whatever happens."""
    cursor.rollback()
    cursor.execute("BEGIN TRANSACTION READ ONLY")
    try:
        yield
    finally:
        with suppress(duckdb.Error):
            cursor.rollback()


@contextmanager
def _ended_after(cursor: Cursor, timeout_s: float) -> Iterator[None]:
    timer = threading.Timer(timeout_s, cursor.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _result(cursor: Cursor, statement: duckdb.Statement, limit: int) -> Result:
    began = time.monotonic()
    rows = cursor.sql(statement)
    types = tuple(str(kind) for kind in rows.types)
    reader = rows.to_arrow_reader(BATCH)
    batches: list[pa.RecordBatch] = []
    num_rows = num_bytes = 0
    why = ""
    for batch in reader:
        fitting = bisect_right(range(1, len(batch) + 1), MOST_BYTES - num_bytes, key=lambda n: batch[:n].nbytes)
        taken = min(fitting, limit - num_rows)
        batches.append(batch[:taken])
        num_rows, num_bytes = num_rows + taken, num_bytes + batch[:taken].nbytes
        if taken < len(batch):
            why = f"more than {MOST_BYTES // 1_000_000} MB" if taken == fitting else "more rows than are shown"
            break
    table = pa.Table.from_batches(batches, reader.schema)
    why = f"Only the first {num_rows:,} rows: {why}." if why else ""
    return Result(tuple(rows.columns), types, table, num_rows, bool(why), why, time.monotonic() - began)
