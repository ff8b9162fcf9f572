"""Inbox: trials, runs and comparisons handed over as files by other processes, imported by the owner of the history."""

import logging
import os
import shutil
import stat
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb
import msgspec
import pyarrow as pa

from engine.comparing.arms import ComparisonRecord
from engine.errors import ConfigError, EngineError, HistoryError, LimitExceeded
from engine.files import decoded_json, read_regular, write_whole
from engine.history.archives.intake import take_in_staged
from engine.history.archives.parts import COMPARISONS, MARKS, Mark, StagedComparison, comparison_line
from engine.history.archives.reading import read_comparison
from engine.history.archives.staging import StagingWriter
from engine.history.run_file import read_run, run_bytes
from engine.history.store import History
from engine.history.trial_file import read_trial, trial_bytes
from engine.history.trials import TrialRecord
from engine.runs import RunRecord

INBOX = "inbox"
"""Name of the inbox folder inside the home folder."""

TRIAL = ".trial"
RUN = ".run.zip"
COMPARISON = ".comparison.json"
TAGS = ".tags"
"""What the file with a run's tags has after the name of the run's file."""
REFUSED = "refused"
REASON = ".reason.txt"
LONGEST_REASON = 1_000
LONGEST_NAME = 200  # bytes of a file's name that its reason's file name includes; the limit for the latter is 255

TRIES = 3
"""Attempts to read a file that takes too much time or memory, or whose reader dies, before it is set aside."""

_STAGING = ".staging"
_MOST_TAG_BYTES = 64 << 10
_OF_VALUES = (
    duckdb.DataError, duckdb.IntegrityError, duckdb.ProgrammingError, TypeError, ValueError, OverflowError,
    msgspec.MsgspecError, pa.ArrowException,
)  # fmt: skip
"""Errors caused by the data of a row that is rejected; all others concern the database."""

_log = logging.getLogger(__name__)

Stage = Callable[[Path, Path], object]


def write_inbox(
    folder: Path, kept: TrialRecord | RunRecord | ComparisonRecord, *, run_tags: Sequence[str] = ()
) -> Path:
    """Write a trial, run or comparison to the inbox, for the owner of the history; return the path of its file.

    run_tags: tags that a run gets when it is imported, written to a file beside it first. Each file appears whole or
    not at all. Raises HistoryError when the folder cannot be written.
    """
    match kept:
        case TrialRecord():
            what, suffix, content = "trial", TRIAL, trial_bytes(kept)
        case RunRecord():
            what, suffix, content = "run", RUN, run_bytes(kept)
        case _:
            what, suffix, content = "comparison", COMPARISON, comparison_line(kept)
    path = folder / f"{kept.id}{suffix}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if run_tags:
            write_whole(_tags_beside(path), msgspec.json.encode(_mark(kept.id, tuple(run_tags))))
        write_whole(path, content)
    except OSError as error:
        raise HistoryError(
            f"The {what} could not be written to {folder}: {error}. It is not saved; its results are still shown."
        ) from error
    return path


def has_arrivals(folder: Path) -> bool:
    """Return whether the inbox has files to be imported."""
    return any(path.name.endswith((TRIAL, RUN, COMPARISON)) for path in folder.glob("*"))


def stage_kept(path: Path, folder: Path) -> None:
    """Read the trial, run or comparison in an inbox file into a staging folder.

    Raises ConfigError where the file has other content, HistoryError where the folder cannot be written.
    """
    try:
        kept = _read(path)
        mark = _read_mark(path) if isinstance(kept, RunRecord) else None
    except Exception as error:
        raise ConfigError(f"{type(error).__name__}: {error}") from error
    try:
        with StagingWriter(folder) as writer:
            match kept:
                case TrialRecord():
                    writer.add_trial(kept)
                case RunRecord():
                    writer.add_run(kept)
                    if mark is not None:
                        writer.add(MARKS, mark)
                case _:
                    writer.add(COMPARISONS, kept)
    except OSError as error:
        raise HistoryError(f"{path.name} could not be imported and stays in the inbox: {error}") from error


class Inbox:
    """Import of the files in `folder` into the history; to be used by one thread.

    stage: reads a file into a staging folder, and raises errors, as `stage_kept` does; also LimitExceeded where the
    reading process fails.
    """

    def __init__(self, folder: Path, stage: Stage = stage_kept) -> None:
        self._folder, self._stage = folder, stage
        self._num_tries: Counter[str] = Counter()

    def take(self, history: History) -> list[str]:
        """Import every file and remove it; return the ids, those of trials, runs, then comparisons, oldest first.

        Entries that are already stored are not stored again. A file that cannot be read is moved to `refused/`, with
        the reason in a text file next to it; `refusals` returns both. Raises HistoryError when the history cannot be
        written; the remaining files stay. If a file can be neither imported nor set aside, HistoryError is raised once
        the others are imported.
        """
        taken: list[str] = []
        stuck: list[_Stuck] = []
        paths = [path for suffix in (TRIAL, RUN, COMPARISON) for path in sorted(self._folder.glob(f"*{suffix}"))]
        for path in paths:
            try:
                if self._take(history, path):
                    taken.append(path.name.partition(".")[0])
            except _Stuck as error:
                stuck.append(error)
        if stuck:
            raise stuck[0]
        return taken

    def _take(self, history: History, path: Path) -> bool:
        """Import one file; return False where it has disappeared, was set aside, or is to be read again later."""
        with self._staging() as folder:
            try:
                self._stage(path, folder)
            except EngineError as error:
                self._refuse(path, error)
                return False
            try:
                take_in_staged(history, folder, path.name, is_from_here=True, keeps_both=True)
            except HistoryError as error:
                if not isinstance(error.__cause__, _OF_VALUES):
                    raise
                self._set_aside(path, str(error))
                return False
        with suppress(FileNotFoundError):
            if path.name.endswith(TRIAL):
                history.count_calls(path.stat().st_size)
            path.unlink()
            _tags_beside(path).unlink(missing_ok=True)
        return True

    def _refuse(self, path: Path, error: EngineError) -> None:
        """Set aside an unreadable file, unless it has disappeared, or its reader may have failed by chance.

        Raises _Stuck for a HistoryError, and where the file cannot be moved.
        """
        if isinstance(error, HistoryError):
            raise _Stuck(str(error)) from error
        if isinstance(error, LimitExceeded):
            self._num_tries[path.name] += 1
        if isinstance(error, ConfigError) or self._num_tries[path.name] >= TRIES:
            if os.path.lexists(path):
                self._set_aside(path, str(error))
        else:
            _log.warning("%s will be read again later: %s", path.name, error)

    def _set_aside(self, path: Path, reason: str) -> None:
        refused = self._folder / REFUSED
        self._num_tries.pop(path.name, None)
        try:
            refused.mkdir(exist_ok=True)
            name = os.fsencode(path.name)[:LONGEST_NAME].decode("utf-8", "replace")
            (refused / f"{name}{REASON}").write_text(f"{reason[:LONGEST_REASON]}\n", encoding="utf-8", errors="replace")
            os.replace(path, refused / path.name)
            with suppress(FileNotFoundError):
                os.replace(_tags_beside(path), refused / _tags_beside(path).name)
        except OSError as error:
            raise _Stuck(f"{path} cannot be imported ({reason}) or set aside: {error}") from error

    @contextmanager
    def _staging(self) -> Iterator[Path]:
        """Provide an empty staging folder for one file; it is removed afterwards."""
        folder = self._folder / _STAGING
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise _Stuck(f"Nothing can be imported from {self._folder}: {error}") from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def refusals(folder: Path) -> dict[str, str]:
    """Return the names of the inbox files that were set aside, each with its reason; the latest first."""
    reasons = sorted((folder / REFUSED).glob(f"*{REASON}"), key=lambda path: path.name, reverse=True)
    return {path.name.removesuffix(REASON): _reason(path) for path in reasons}


def _reason(path: Path) -> str:
    try:
        return read_regular(path).decode("utf-8", "replace").strip()
    except OSError as error:
        return f"the reason cannot be read ({error.strerror})"


def _check_regular(path: Path) -> None:
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError(f"{path.name} is not a regular file")


def _tags_beside(path: Path) -> Path:
    """Return the path of the file with the tags of the run in an inbox file."""
    return path.with_name(path.name + TAGS)


def _mark(run_id: str, tags: tuple[str, ...]) -> Mark:
    return Mark("run", uuid.UUID(run_id), is_starred=False, is_archived=False, note="", tags=tags)


def _read_mark(path: Path) -> Mark | None:
    """Return the tags of the run in an inbox file as a mark on it; None where it has none. Raises ValueError."""
    beside = _tags_beside(path)
    if not os.path.lexists(beside):
        return None
    _check_regular(beside)
    mark = decoded_json(read_regular(beside, _MOST_TAG_BYTES), Mark)
    if (mark.kind, f"{mark.id}{RUN}") != ("run", path.name):
        raise ValueError(f"{beside.name} is of the {mark.kind} {mark.id}")
    return _mark(str(mark.id), mark.tags)


class _Stuck(HistoryError):
    """A file can be neither imported nor set aside."""


def _read(path: Path) -> TrialRecord | RunRecord | StagedComparison:
    _check_regular(path)
    suffix = next(suffix for suffix in (TRIAL, RUN, COMPARISON) if path.name.endswith(suffix))
    kept: TrialRecord | RunRecord | StagedComparison
    if suffix == TRIAL:
        kept = read_trial(path)
    elif suffix == RUN:
        kept = read_run(path)
    else:
        kept = read_comparison(read_regular(path))
    if path.name != f"{kept.id}{suffix}":
        raise ValueError(f"its content has the id {kept.id}")
    return kept
