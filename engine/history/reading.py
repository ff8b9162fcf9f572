"""Read access to the history, also while another process owns it, and snapshots of it as one file."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from engine.errors import ConfigError, HistoryError, HistoryLocked
from engine.files import scratch_folder, writing_whole
from engine.history import database
from engine.history.database_writer import DatabaseWriter, is_owned_here
from engine.history.lending import copy_from_owner
from engine.history.store import History

_GIVEN_UP_S = 3.0
"""Time from the first attempt on, in which an owner that is closing or opening the file finishes."""


@contextmanager
def open_to_read(path: str | Path) -> Iterator[History]:
    """Open the history at `path`, or a copy of its current state where another process owns it, removed at the end.

    Raises HistoryLocked where the owner lends no copy, else errors as `History.open` does.
    """
    path = Path(path).resolve()
    ends = time.monotonic() + _GIVEN_UP_S
    while True:
        try:
            history = History.open(path)
        except HistoryLocked as locked:
            if is_owned_here(path):
                raise
            with _copied_in(path.parent, path.name) as folder:
                if _is_lent(path, folder / path.name, locked, is_last=time.monotonic() > ends):
                    with History(DatabaseWriter.open(folder / path.name)) as copy:
                        yield copy
                    return
            time.sleep(0.1)
        else:
            with history:
                yield history
            return


def _is_lent(path: Path, target: Path, locked: HistoryLocked, *, is_last: bool) -> bool:
    """Copy the history of another process; return False where a retry may succeed. Raises HistoryError."""
    try:
        copy_from_owner(path, target)
    except ConnectionError as error:
        if not is_last:
            return False
        raise HistoryLocked(
            f"{locked} That process provides no copy either: it is another program or has just closed ({error})."
        ) from error
    except TimeoutError as error:
        raise HistoryLocked(
            f"{locked} That process did not allow a copy in time: it is busy writing or not responding. Try again."
        ) from error
    except OSError as error:
        raise database.explain(error, path) from error
    return True


def write_snapshot(history: History, target: Path) -> int:
    """Write the history as one DuckDB file, whole or not at all; return its size in bytes.

    Raises ConfigError where `target` exists already, HistoryError where it cannot be written.
    """
    if os.path.lexists(target):
        raise ConfigError(f"{target} already exists. Choose another file name, or remove it first.")
    try:
        with scratch_folder(target.parent, target.name) as folder:
            copy = folder / "history.duckdb"
            history.console.copy_to(copy)
            with closing(database.connect(copy)) as connection:
                connection.execute("CHECKPOINT")
            with copy.open("rb") as read, writing_whole(target) as written:
                shutil.copyfileobj(read, written, 1 << 20)
        return target.stat().st_size
    except OSError as error:
        raise HistoryError(f"{target} could not be written: {error}. Nothing was changed.") from error


@contextmanager
def _copied_in(parent: Path, name: str) -> Iterator[Path]:
    """Provide a private folder for a copy of the history. Raises HistoryError where it cannot be made."""
    with ExitStack() as kept:
        try:
            folder = kept.enter_context(scratch_folder(parent, name))
        except OSError as error:
            raise HistoryError(f"The history cannot be copied to {parent}: {error}.") from error
        yield folder
