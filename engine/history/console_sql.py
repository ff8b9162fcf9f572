"""Child process of the SQL console: copies the history, and runs people's SQL on that copy.

The copy is opened read-only, and nothing outside of it can be accessed; the parent ends this process at its deadline.
"""

import errno
import re
import resource
import socket
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from engine.errors import ConfigError, HistoryError, LimitExceeded
from engine.history.console_copy import copy_database
from engine.history.references import views
from engine.process.channel import Message
from engine.process.limits import return_freed_memory
from engine.process.serving import serve

MOST_BYTES = 20_000_000
MOST_LEVELS = 60
_AT_ONCE_S = 0.25
_BATCH = 2048
_READING = frozenset({"SELECT", "EXPLAIN", "MULTI"})  # MULTI: a PIVOT, which looks up its columns first
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "lock_configuration": "true",
    "temp_directory": "",
    "memory_limit": "768MiB",
    "threads": "1",
}


class Copy(Message, frozen=True):
    """Request to copy the database at `source`, which must not be written meanwhile, to `target`."""

    source: str
    target: str


class GoOn(Message, frozen=True):
    """Request to continue the copy."""


class Copied(Message, frozen=True):
    """Answer to Copy and GoOn, sent every quarter of a second; GoOn requests must follow until `is_complete`."""

    is_complete: bool


class Open(Message, frozen=True):
    """Request to open the copy, unless it is open already."""

    path: str


class Ask(Message, frozen=True):
    """Request to run one statement. limit: the maximum number of rows to return."""

    sql: str
    limit: int


class Answer(Message, frozen=True):
    """Result of a statement: names and DuckDB types of the columns, and the rows as an Arrow IPC stream.

    why_truncated: the limit that cut the rows, empty where they are complete. elapsed_s: from start to last row.
    """

    columns: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    rows: bytes = b""
    why_truncated: str = ""
    elapsed_s: float = 0.0


Request = Copy | GoOn | Open | Ask


class CopiedHistory:
    """The copy and the connection to it, which stays open between queries."""

    def __init__(self) -> None:
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._pieces: Iterator[None] = iter(())
        _allow_writing(False)

    def answer(self, request: Request) -> Copied | Answer:
        """Handle a request.

        Raises ConfigError for an invalid statement, LimitExceeded where it needs too much memory or DuckDB fails
        internally, HistoryError for a copy that cannot be made or opened.
        """
        match request:
            case Copy():
                self._close()
                self._pieces = copy_database(Path(request.source), Path(request.target))
                return self._copied()
            case GoOn():
                return self._copied()
            case Open():
                self._open(Path(request.path))
            case Ask():
                return self._ask(request)
        return Answer()

    def _copied(self) -> Copied:
        """Copy for a quarter of a second."""
        end = time.monotonic() + _AT_ONCE_S
        _allow_writing(True)
        try:
            return Copied(not any(time.monotonic() > end for _ in self._pieces))
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            advice = "Free some space, then run the query again." if is_full else "Mend that, then run the query again."
            raise HistoryError(f"The history could not be copied for the console: {error}. {advice}") from error
        finally:
            _allow_writing(False)

    def _open(self, path: Path) -> None:
        if self._connection is not None:
            return
        try:
            self._connection = duckdb.connect(path, read_only=True, config=_CONFIG)
        except duckdb.Error as error:
            raise HistoryError(f"The console's copy of the history could not be opened: {error}") from error

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _ask(self, request: Ask) -> Answer:
        assert self._connection is not None
        with _explained(), self._connection.cursor() as cursor:
            for view in views():  # temporary views of this cursor: the copy itself stays identical to the history
                cursor.execute(view.sql)
            statement = _only_statement(cursor, request.sql)
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            return _result(cursor, statement, request.limit)


def _allow_writing(is_allowed: bool) -> None:
    """Allow or forbid writing to files, by the kernel's file size limit: forbidden while people's SQL runs."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if is_allowed else 0, hard))


def _only_statement(cursor: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    statements = cursor.extract_statements(sql)
    if len(statements) != 1:
        raise ConfigError(f"The console runs one statement at a time; this query has {len(statements)}.")
    (statement,) = statements
    try:
        kind = statement.type.name
    except ValueError:  # DuckDB parses kinds that its Python package has no name for
        kind = "another kind"
    if kind not in _READING:
        raise ConfigError(
            f"The console is read-only: it runs SELECT, PIVOT, EXPLAIN or DESCRIBE. This is {kind.replace('_', ' ')}."
        )
    if statement.named_parameters:
        raise ConfigError("The query has parameters (? or $name): replace them with values.")
    return statement


@contextmanager
def _explained() -> Iterator[None]:
    """Turn failures of the statement into ConfigError with the reason; into LimitExceeded, after which this process is
    replaced, where memory was short or DuckDB refuses all further work."""
    try:
        yield
    except (duckdb.FatalException, duckdb.InternalException) as error:
        raise LimitExceeded(f"DuckDB failed with an internal error ({_first_line(error)})") from error
    except duckdb.OutOfMemoryException as error:
        raise LimitExceeded(f"it needs more memory than the console may use ({_first_line(error)})") from error
    except duckdb.PermissionException as error:
        raise ConfigError(
            f"The console can only access the history's tables, not files, settings or other databases. ({error})"
        ) from error
    except duckdb.Error as error:
        text = str(error).strip()
        is_write = "read-only" in text
        raise ConfigError(f"The console is read-only; this would write. ({text})" if is_write else text) from error
    except MemoryError:
        raise
    except pa.ArrowException as error:
        raise ConfigError(
            f"The console cannot show a result of this type: {_first_line(error)}. Lists and structs may be nested "
            f"{MOST_LEVELS} levels deep; select their parts, or cast the column to VARCHAR."
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _result(cursor: duckdb.DuckDBPyConnection, statement: duckdb.Statement, limit: int) -> Answer:
    """Run the statement, and fetch its rows until a limit is reached."""
    began = time.monotonic()
    rows = cursor.sql(statement)
    names, types = tuple(rows.columns), tuple(str(kind) for kind in rows.types)
    as_text = {place for place, kind in enumerate(types) if _ONLY_TEXT.search(kind)}
    while True:
        dated = [place for place, kind in enumerate(types) if _has_dates(kind) and place not in as_text]
        try:
            data, why = _taken(_with_text(rows, names, as_text), dated, limit)
        except _DatesOutOfRange as error:
            as_text.add(error.place)
        else:
            return Answer(names, types, data, why, time.monotonic() - began)


def _taken(rows: duckdb.DuckDBPyRelation, dated: list[int], limit: int) -> tuple[bytes, str]:
    """Return the rows within the limits as an Arrow stream, and why the rest is missing ("" where it is complete).

    Raises _DatesOutOfRange for a column of `dated` with a date that Python cannot represent.
    """
    reader = rows.to_arrow_reader(_BATCH)
    sink = pa.BufferOutputStream()
    num_rows = num_bytes = 0
    why = ""
    with pa.ipc.new_stream(sink, reader.schema) as stream:
        for batch in reader:
            fitting = bisect_right(range(1, len(batch) + 1), MOST_BYTES - num_bytes, key=lambda n: batch[:n].nbytes)
            taken = min(fitting, limit - num_rows)
            _check_dates(batch[:taken], dated)
            stream.write_batch(batch[:taken])
            num_rows, num_bytes = num_rows + taken, num_bytes + batch[:taken].nbytes
            if taken < len(batch):
                why = f"the result exceeds {MOST_BYTES // 1_000_000} MB" if taken == fitting else "the result has more"
                break
    return sink.getvalue().to_pybytes(), f"Showing the first {num_rows:,} rows: {why}." if why else ""


_ONLY_TEXT = re.compile(r'\b(INTERVAL|UNION|TIMETZ|TIME_NS|(?<!WITH )TIME)\b|"NULL"')
"""Types without a counterpart in Python or Parquet: a time may be 24:00:00, and an empty map has no element types."""


def _has_dates(kind: str) -> bool:
    return "DATE" in kind or "TIMESTAMP" in kind


def _with_text(rows: duckdb.DuckDBPyRelation, names: tuple[str, ...], places: set[int]) -> duckdb.DuckDBPyRelation:
    """Return the rows with the columns at `places` cast to text: pandas and Parquet cannot represent their values."""
    if not places:
        return rows
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    return rows.project(
        ", ".join(f"#{i + 1}{'::VARCHAR' if i in places else ''} AS {name}" for i, name in enumerate(quoted))
    )


class _DatesOutOfRange(Exception):
    """A column, given by its index, has infinite dates, or dates in years that Python cannot represent."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


def _check_dates(batch: pa.RecordBatch, places: list[int]) -> None:
    for place in places:
        try:
            batch.column(place).to_pylist()
        except (OverflowError, ValueError) as error:
            raise _DatesOutOfRange(place) from error


def main(end: socket.socket) -> None:
    """Serve requests until the parent closes the connection."""
    return_freed_memory()
    pa.scalar(0, pa.timestamp("ns")).as_py()  # loads pandas where it is installed: here, not within a query's time
    serve(end, Request, CopiedHistory().answer)
