"""DuckDB connection: checks before opening the file, hardening of the connection, and error messages."""

import errno
import os
import re
import shutil
from contextlib import closing, suppress
from pathlib import Path

import duckdb
import pyarrow as pa

from engine.errors import EngineError, HistoryError, HistoryLocked, HistoryNewer
from engine.files import check_database_path, scratch_folder
from engine.history import schema
from engine.private_files import tighten

# Files of this storage version can also be read by DuckDB 1.5, which is supported besides 2.0.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "storage_compatibility_version": "v1.5.0",
    # Measured at 256 candidates per step: 1.6 KB per step with blocks of 64 KiB, from the first trials on; 2.4 KB in a
    # small file with DuckDB's default of 256 KiB; 2.3 KB in a large file with 16 KiB.
    "default_block_size": "65536",
    "memory_limit": "1GiB",
    # No spilling to temporary files: on a failing disk the data could not be read back, and `release_memory` would
    # spill everything that is not in the file yet. All queries of this package are bounded.
    "temp_directory": "",
    "threads": "2",
    "allowed_configs": ["memory_limit"],  # for `release_memory`
    # Checkpoints are made by DatabaseWriter: one that starts inside a commit and fails leaves the outcome of the commit
    # unknown.
    "checkpoint_threshold": "1TiB",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
}
_HEADERS = 3 * 4096  # bytes before the first block of a DuckDB file


def connect(path: Path) -> duckdb.DuckDBPyConnection:
    """Open `path` exclusively for this process; create or migrate it if needed, with a backup before a migration.

    Raises HistoryLocked, HistoryNewer or HistoryError; the file is unchanged then.
    """
    check_database_path(path, HistoryError)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in (path, Path(f"{path}.wal")):
            if file.exists() and not file.is_file():  # opening a pipe would block forever
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(file))
            tighten(file)
        if path.exists() and _is_empty(path):
            path.unlink()
        if not path.exists():
            _create(path)
        pending = _pending(path)
        if pending:
            _back_up(path, f"before-{pending[0]}")
        return _open(path)
    except EngineError:
        raise
    except (duckdb.Error, OSError) as error:
        raise explain(error, path) from error


def _create(path: Path) -> None:
    """Create an empty history under another name, then give it its own: a killed process or a full disk leaves no part
    of a file. Does nothing where another process was faster."""
    with scratch_folder(path.parent, path.name) as folder:
        made = folder / path.name
        with closing(_open(made)) as connection:
            connection.execute("CHECKPOINT")
        try:
            os.link(made, path)
        except FileExistsError:
            return
        except OSError:  # a file system without hard links
            made.rename(path)


def _is_empty(path: Path) -> bool:
    """Return whether the file has no content, as a full disk left it once; a log beside it has rows to be saved."""
    return path.stat().st_size == 0 and not Path(f"{path}.wal").exists()


def release_memory(connection: duckdb.DuckDBPyConnection) -> None:
    """Release cached blocks of the file, DuckDB's records of buffers of finished queries, and pyarrow's unused memory.

    DuckDB purges these records only where memory is short, or where there are 32,768 of them; a page view leaves about
    a hundred. Setting a memory limit that cannot be met triggers the purge. Nothing else may use the database
    meanwhile: it would run out of memory.
    """
    with connection.cursor() as cursor:
        try:
            with suppress(duckdb.OutOfMemoryException):
                cursor.execute("SET memory_limit = '1KiB'")
        finally:
            cursor.execute(f"SET memory_limit = '{_CONFIG['memory_limit']}'")
    pa.default_memory_pool().release_unused()


def explain(error: Exception, path: Path) -> HistoryError:
    """Return the error for a failure of the database or its folder: a plain message, and the most specific class."""
    text = str(error).strip()
    first = text.splitlines()[0] if text else type(error).__name__
    if "Could not set lock" in text:
        pid = re.search(r"PID (\d+)", text)
        return locked(path, pid.group(1) if pid else "unknown")
    if re.search(r"newer version|version number", text, re.IGNORECASE):
        return HistoryNewer(
            f"The history {path} was written by a newer version of DuckDB than the one installed here. Nothing was "
            f"changed. Start the newer workbench, or set LOGITBENCH_HOME to another folder. ({first})"
        )
    for pattern, meaning in _MEANINGS:
        if pattern.search(text):
            return HistoryError(f"The history {path} {meaning} ({first})")
    return HistoryError(
        f"The history {path} could not be used: {first} Saved data is unchanged; restarting the workbench may help."
    )


_MEANINGS = (
    (re.compile(r"Connection already closed", re.IGNORECASE), "is closed; open it again."),
    (re.compile(r"^INTERRUPT"), "is being closed or reopened, which interrupted this read. Try again."),
    (
        re.compile(r"No space left|File too large|Disk quota|out of disk", re.IGNORECASE),
        (
            "could not grow: the disk is full. Everything saved before is still there. Free some space; an open "
            "workbench then saves what it could not save before."
        ),
    ),
    (
        re.compile(r"Permission denied|Read-only file system|Operation not permitted", re.IGNORECASE),
        (
            "cannot be written: its file or folder is not writable by this user. Change the permissions, or set "
            "LOGITBENCH_HOME to a writable folder."
        ),
    ),
    (
        re.compile(r"No such file|Not a directory|Is a directory|File exists", re.IGNORECASE),
        (
            "cannot be created: its folder does not exist, or something else has its name. Set "
            "LOGITBENCH_HOME to a folder."
        ),
    ),
    (
        re.compile(r"not a valid DuckDB|Corrupt|checksum|Could not read|Serialization|deserializ|WAL", re.IGNORECASE),
        (
            "is damaged, or is not a DuckDB database. Nothing was changed. Move the file away to start with an empty "
            "history, or replace it with a backup."
        ),
    ),
)


def locked(path: Path, pid: int | str) -> HistoryLocked:
    """Return the error for a file that process `pid` owns."""
    return HistoryLocked(
        f"The history {path} is in use by process {pid}. Only one process can own it; nothing was changed. "
        "End that process to use the history here."
    )


def _open(path: Path) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(path, config=_CONFIG)
    try:
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        schema.migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _pending(path: Path) -> list[str]:
    """Return the migrations that an existing file still needs, read through a read-only connection.

    Raises HistoryError for another database, HistoryNewer for a file with unknown migrations.
    """
    with closing(duckdb.connect(path, read_only=True, config=_CONFIG)) as connection:
        done = schema.applied(connection)
        if done:
            _check_length(connection, path)
    if done is None:
        raise HistoryError(
            f"{path} is a DuckDB database, but not a Logitbench history. Nothing was changed. Set "
            "LOGITBENCH_HOME to another folder."
        )
    known = schema.names()
    if done != known[: len(done)]:
        unknown = next(name for number, name in enumerate(done) if name not in known[number : number + 1])
        raise HistoryNewer(
            f"The history {path} was written by a newer version of this workbench: it has the migration "
            f"{unknown!r}, which is unknown here. Nothing was changed. Update the workbench, or set LOGITBENCH_HOME "
            "to another folder."
        )
    return known[len(done) :] if done else []


def _check_length(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Raise duckdb.IOException for a truncated file, which DuckDB opens and writes if its catalogue is intact."""
    (block_size,) = connection.execute("SELECT block_size FROM pragma_database_size()").fetchone() or (0,)
    last = -1
    for (table,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall():
        blocks = connection.execute("SELECT block_id FROM pragma_storage_info(?) WHERE block_id >= 0", [table])
        last = max([last, *(block for (block,) in blocks.fetchall())])
    if path.stat().st_size < _HEADERS + (last + 1) * block_size:
        raise duckdb.IOException(f"Could not read block {last}: the file ends before it.")


def _back_up(path: Path, suffix: str) -> None:
    """Copy the file and its write-ahead log, each whole or not at all."""
    for source, ending in ((Path(f"{path}.wal"), ".wal"), (path, "")):
        if source.exists():
            unfinished = Path(f"{path}.{suffix}.unfinished{ending}")
            shutil.copy2(source, unfinished)
            os.replace(unfinished, f"{path}.{suffix}{ending}")
