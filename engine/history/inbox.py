"""Trials and runs handed over as files: a command-line run leaves them, the workbench that owns the history takes them
in."""

import os
from contextlib import suppress
from pathlib import Path

import duckdb

from engine.errors import HistoryError
from engine.history.run_file import read_run, run_bytes
from engine.history.store import History
from engine.history.trial_file import read_trial, trial_bytes
from engine.history.trials import TrialRecord
from engine.history.whole_file import write_whole
from engine.runs import RunRecord

INBOX = "inbox"
"""The folder, in the home folder."""

TRIAL = ".trial"
RUN = ".run.zip"
REFUSED = "refused"
REASON = ".reason.txt"
LONGEST_REASON = 1_000

_OF_VALUES = (duckdb.DataError, duckdb.IntegrityError, duckdb.ProgrammingError)
"""What DuckDB says of a row that it does not take; anything else is about the database."""


def write_inbox(folder: Path, kept: TrialRecord | RunRecord) -> Path:
    """Leave a trial or a run for the owner of the history; the file appears whole or not at all.

    Raises HistoryError when the folder cannot be written.
    """
    is_trial = isinstance(kept, TrialRecord)
    path = folder / f"{kept.id}{TRIAL if is_trial else RUN}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, trial_bytes(kept) if isinstance(kept, TrialRecord) else run_bytes(kept))
    except OSError as error:
        raise HistoryError(
            f"The {'trial' if is_trial else 'run'} could not be left in {folder}: {error}. It is not kept; what it "
            "gave is still shown."
        ) from error
    return path


def take_inbox(history: History, folder: Path) -> list[str]:
    """Keep every trial and run that lies in `folder` and remove its file; gives their ids, trials first, oldest first.

    A file that cannot be read is moved to `refused/` beside a text that says why; `refusals` gives both. What is
    already kept is not kept again. Raises HistoryError when the history takes no more; the files left then stay.
    """
    taken = []
    for path in (*sorted(folder.glob(f"*{TRIAL}")), *sorted(folder.glob(f"*{RUN}"))):
        kept = _read(path)
        if kept is None:
            continue
        try:
            if isinstance(kept, TrialRecord):
                history.record(kept).result()
            else:
                history.runs.keep(kept)
        except HistoryError as error:
            if not isinstance(error.__cause__, _OF_VALUES):
                raise
            _set_aside(path, str(error))
            continue
        path.unlink(missing_ok=True)
        taken.append(kept.id)
    return taken


def refusals(folder: Path) -> dict[str, str]:
    """Files of the inbox that were set aside, each with the reason; the latest first."""
    reasons = sorted((folder / REFUSED).glob(f"*{REASON}"), key=lambda path: path.name, reverse=True)
    with suppress(OSError):
        return {path.name.removesuffix(REASON): path.read_text("utf-8", "replace").strip() for path in reasons}
    return {}


def _read(path: Path) -> TrialRecord | RunRecord | None:
    """What a file holds; None where it is gone meanwhile, or set aside."""
    is_trial = path.name.endswith(TRIAL)
    try:
        kept = read_trial(path) if is_trial else read_run(path)
        if path.name != f"{kept.id}{TRIAL if is_trial else RUN}":
            raise ValueError(f"what is in it has the id {kept.id}")
    except Exception as error:  # whatever one file does, the others are taken in
        if path.exists():
            _set_aside(path, f"{type(error).__name__}: {error}")
        return None
    return kept


def _set_aside(path: Path, reason: str) -> None:
    refused = path.parent / REFUSED
    try:
        refused.mkdir(exist_ok=True)
        (refused / f"{path.name}{REASON}").write_text(
            f"{reason[:LONGEST_REASON]}\n", encoding="utf-8", errors="replace"
        )
        os.replace(path, refused / path.name)
    except OSError as error:
        raise HistoryError(f"{path} cannot be taken in ({reason}), nor set aside: {error}") from error
