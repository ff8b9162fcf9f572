"""SQL console: runs one read-only statement of a person in a child process, on a copy of the history."""

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyarrow as pa

from engine.errors import ConfigError, HistoryError, LimitExceeded, WorkerDied
from engine.history.checks import checked_text
from engine.history.console_help import COMMENTS, READY
from engine.history.console_sql import Answer, Ask, Copied, Copy, GoOn, Open
from engine.history.database_writer import DatabaseWriter
from engine.history.references import views
from engine.process.limits import Limits
from engine.process.program import Program, Service

T = TypeVar("T")
__all__ = ["READY", "Column", "Console", "Result"]

MOST_ROWS = 10_000
MOST_CHARACTERS = 100_000
SHORT_S, MOST_S = 2.0, 60.0
_MEMORY_BYTES = 2 << 30
_WAIT_S = 30.0
"""Timeout for waiting for the previous query, for earlier writes, and for opening a copy."""

_STEP_S = 5.0
_NARROW = "Narrow it: filter on run_id or created_at, join both tables on their keys, or select fewer columns."
"""Timeout for each step of a copy, which takes a quarter of a second: the history is not written during a copy."""


class Column(NamedTuple):
    """One column of a table: its name, its DuckDB type, its meaning (may be empty)."""

    name: str
    type: str
    comment: str


class Result(NamedTuple):
    """Result of a statement: names and DuckDB types of the columns, and the rows as Arrow.

    why_truncated: the limit that cut the rows, empty where they are complete. elapsed_s: seconds from start to last
    row. as_of: time (UTC) of the state of the history that the statement saw.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]
    table: pa.Table
    num_rows: int
    is_truncated: bool
    why_truncated: str
    elapsed_s: float
    as_of: datetime


class Console:
    """SQL console: runs a statement where it can change nothing, read nothing else and block nothing. Thread-safe.

    The child process is started by the first query. The copy is in a folder next to the history, readable by its owner
    only, and is refreshed when the history has changed.
    """

    def __init__(self, file: DatabaseWriter) -> None:
        self._file = file
        self._folder = Path(f"{file.path}.console")
        self._copied_version = -1
        self._asking = threading.Lock()
        self._starting = threading.Lock()
        self._service: Service | None = None
        self._is_closed = False
        self._remove_copy()

    def run(self, sql: str, *, limit: int = MOST_ROWS, timeout_s: float = SHORT_S) -> Result:
        """Run one SELECT, PIVOT, EXPLAIN or DESCRIBE; return up to `limit` rows, and up to 20 MB.

        Raises ConfigError with the reason for a statement that is invalid, writes, or reads files, and for more than
        one statement; LimitExceeded for one that takes longer than `timeout_s` seconds, or too much memory;
        HistoryError where the history cannot be copied.
        """
        _check(sql, limit, timeout_s)
        with self._prepared(self._open_copy) as (program, as_of):
            answer = _ask(program, Ask(sql, limit), timeout_s)
        table = pa.ipc.open_stream(answer.rows).read_all()
        why = answer.why_truncated
        return Result(answer.columns, answer.types, table, len(table), bool(why), why, answer.elapsed_s, as_of)

    def schema(self) -> dict[str, list[Column]]:
        """Return every table with its columns in order; the views of the reference timings come last."""
        with self._file.reading() as cursor:
            rows = cursor.execute(
                "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal "
                "ORDER BY table_name, column_index"
            ).fetchall()
        tables: dict[str, list[Column]] = {}
        for table, name, kind in rows:
            tables.setdefault(table, []).append(Column(name, kind, COMMENTS.get((table, name), "")))
        for view in views():
            tables[view.name] = [
                Column(name, kind, view.comment if name == "origin" else "") for name, kind in view.columns.items()
            ]
        return tables

    def copy_to(self, target: Path) -> None:
        """Copy the file in its current state, with its log next to it. Raises HistoryError where that fails."""
        with self._prepared(lambda program: self._copy(program, target)):
            pass

    def close(self) -> None:
        """End the child process, and with it any pending query; remove the copy. Safe to call twice."""
        with self._starting:
            self._is_closed = True
        if self._service is not None:
            self._service.close()
        with self._asking:
            self._remove_copy()

    @contextmanager
    def _prepared(self, prepare: Callable[[Program], T]) -> Iterator[tuple[Program, T]]:
        """Reserve the child process for one query and prepare it; if it fails at that, a new one tries once.

        Raises LimitExceeded where it stays busy, HistoryError where the second one fails too.
        """
        with self._exclusive() as service, ExitStack() as claim:
            for is_last in (False, True):
                program = claim.enter_context(service.claimed(_WAIT_S))
                try:
                    done = prepare(program)
                    break
                except (LimitExceeded, WorkerDied) as error:
                    if is_last:
                        raise HistoryError(
                            f"The history could not be copied for the console: {error}. A second process failed "
                            "too. Run the query again when the machine is less busy."
                        ) from error
                    claim.close()
            yield program, done

    @contextmanager
    def _exclusive(self) -> Iterator[Service]:
        if not self._asking.acquire(timeout=_WAIT_S):
            raise LimitExceeded("The console is busy with queries from other pages. Run the query again in a moment.")
        try:
            yield self._started()
        finally:
            self._asking.release()

    def _started(self) -> Service:
        with self._starting:
            if self._is_closed:
                raise HistoryError("The history is closed; open it again.")
            if self._service is None:
                self._service = Service(
                    "engine.history.console_sql",
                    does="runs the console's SQL",
                    answers=Copied | Answer,
                    limits=Limits(memory_bytes=_MEMORY_BYTES),
                )
            return self._service

    def _open_copy(self, program: Program) -> datetime:
        """Have the child open a copy of the current state of the history; return the time of that state."""
        as_of = datetime.now(UTC)
        target = self._folder / "history.duckdb"
        if self._copied_version != self._file.version or not target.exists():
            self._copied_version = -1
            self._copied_version, as_of = self._copy(program, target)
        program.ask(Open(str(target)), _WAIT_S)
        return as_of

    def _copy(self, program: Program, target: Path) -> tuple[int, datetime]:
        """Have the child copy the history; return the version and the time of the copied state.

        This blocks the writer thread, but only as long as the child makes progress.
        """

        def copy() -> tuple[int, datetime]:
            self._file.check_place()
            copied: Copied = program.ask(Copy(str(self._file.path), str(target)), _STEP_S)
            while not copied.is_complete:
                copied = program.ask(GoOn(), _STEP_S)
            return self._file.version, datetime.now(UTC)

        return _result_of(self._file.while_still(copy))

    def _remove_copy(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _check(sql: str, limit: int, timeout_s: float) -> None:
    checked_text("query", sql, MOST_CHARACTERS)
    if not 1 <= limit <= MOST_ROWS:
        raise ConfigError(f"limit = {limit}: must be a whole number from 1 to {MOST_ROWS:,}")
    if not 0 < timeout_s <= MOST_S:
        raise ConfigError(f"timeout_s = {timeout_s}: must be a number above 0, up to {MOST_S:g}")


def _ask(program: Program, request: Ask, timeout_s: float) -> Answer:
    try:
        answer: Answer = program.ask(request, timeout_s)
    except (LimitExceeded, WorkerDied) as error:
        reason = str(error).rstrip(".")
        advice = "" if reason.endswith("try again") else f" {_NARROW}"
        raise LimitExceeded(f"The query was stopped: {reason}.{advice}") from error
    return answer


def _result_of(copying: "Future[T]") -> T:
    """Wait for a copy, which waits for earlier writes. Raises HistoryError where it does not begin in time."""
    try:
        return copying.result(_WAIT_S)
    except TimeoutError:
        if not copying.cancel():  # it has begun
            return copying.result()
        raise HistoryError(
            f"The history could not be copied: it has been written to for more than {_WAIT_S:g} s. "
            "Try again when the writes are done."
        ) from None
