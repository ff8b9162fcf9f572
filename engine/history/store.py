"""History store: records, reads, hides and purges trials, and gives access to runs, comparisons, vectors and marks."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import pyarrow as pa

from engine.comparing.branch_tree import TokenPath
from engine.errors import HistoryError
from engine.history import activity, columns, comparisons, conversations, marks, reports, runs, saved_views, vectors
from engine.history.api_trials import ApiTrials
from engine.history.conditions import NUM_TOKENS
from engine.history.console import Console
from engine.history.database_writer import Cursor, DatabaseWriter, fetch, insert_row, insert_rows, is_changed
from engine.history.families import Relative, read_family, read_paths
from engine.history.lending import Lender
from engine.history.read_cursor import ReadCursor
from engine.history.search import Finder
from engine.history.trials import OUTPUT_CHARACTERS, TrialLabel, TrialRecord, TrialSummary, as_uuid
from engine.vocabulary import Vocabulary

log = logging.getLogger(__name__)

MOST_VOCABULARIES = 8
"""Vocabularies cached for the next trial of the same tokenizer; one of 200,000 tokens takes tens of megabytes."""


class History:
    """Trials and benchmark runs in one DuckDB file, which this process owns until `close`; others may copy it.

    All methods may be called from any thread. `record` returns at once; the trial is on disk when its future is done,
    and is stored whole or not at all. A trial that is already stored is not stored again. `runs` has the benchmarks,
    `comparisons` the groups of compared trials, `conversations` the chats among the trials, `vectors` the embeddings
    for similarity search, `views` the saved views of the History page, `reports` the reports on runs and trials, `find`
    searches runs and trials, `activity` says what was run in a week, `marks` has people's stars, notes and tags,
    `console` runs their SQL, `file` gives the rest of this package read and write access.
    """

    def __init__(self, file: DatabaseWriter, most_api_bytes: int | None = None) -> None:
        self.path = file.path
        self.file = file
        self.runs = runs.Runs(file)
        self.marks = marks.Marks(file)
        self.find = Finder(file, self._vocabulary)
        self.comparisons = comparisons.Comparisons(file)
        self.conversations = conversations.Conversations(file)
        self.vectors = vectors.Vectors(file)
        self.activity = activity.Activity(file)
        self.views = saved_views.SavedViews(file)
        self.reports = reports.Reports(file)
        self.console = Console(file)
        self._api_trials = ApiTrials(file, _insert, most_api_bytes)
        self._lender = Lender(file)
        self._vocabularies: dict[str, Vocabulary] = {}

    @classmethod
    def open(cls, path: str | Path, *, most_api_bytes: int | None = None) -> Self:
        """Open and own the file at `path`, created with its folder if it does not exist.

        Deleted entries are purged now, and unfinished runs are marked as interrupted. Raises HistoryLocked when a
        process (this one included) has the file open, HistoryNewer when a newer version wrote it, HistoryError when it
        is damaged or cannot be written. An existing file is never overwritten.

        most_api_bytes: space for trials of API calls, of which the oldest without marks are deleted beyond it; None: no
        limit.
        """
        history = cls(DatabaseWriter.open(Path(path)), most_api_bytes)
        try:
            history.gc()
            history.runs.mark_interrupted()
        except HistoryError as error:
            log.warning("The history could not be cleaned up: %s", error)
        history._api_trials.shrink()
        return history

    def close(self, within_s: float | None = None) -> None:
        """Finish queued writes, interrupt reads, then close the file. Closing it again has no effect.

        within_s: time limit for all queued writes together; writes that are not finished by then are not waited for,
        and may be lost.
        """
        self._api_trials.flush()
        self._lender.close()
        self.console.close()
        self.file.close(within_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, trial: TrialRecord, *, is_urgent: bool = False) -> Future[None]:
        """Queue a trial for storage; the future fails with HistoryError when the disk is full or the file unusable.

        One of an API call waits up to 0.1 s for others that are stored with it, unless it is urgent.
        """
        if trial.label == TrialLabel.API and not is_urgent:
            return self._api_trials.add(lambda: trial)
        return self.file.write(lambda cursor: _store(cursor, trial))

    def record_call(self, make: Callable[[], TrialRecord]) -> Future[None]:
        """Queue the trial of an API call as `record` does. make: returns its record, on the thread that stores it."""
        return self._api_trials.add(make)

    def count_calls(self, num_bytes: int) -> None:
        """Count trials of API calls that `record` has not stored; the oldest beyond the limit go."""
        self._api_trials.count(num_bytes)

    def delete(self, id: str) -> bool:
        """Hide a trial until `restore`, or until the next open purges it; return False where it does not exist.

        One that waits to be stored is stored first, so that it is hidden too.
        """
        self._api_trials.flush()
        return self._set_deleted(id, datetime.now(UTC).replace(tzinfo=None))

    def restore(self, id: str) -> bool:
        """Undo `delete`; return False where the trial no longer exists."""
        return self._set_deleted(id, None)

    def gc(self) -> int:
        """Purge deleted entries, and tokenizers without a trial; return the number of purged entries."""
        of_people = (runs.purge, comparisons.purge, reports.purge)
        return self.file.write(lambda cursor: _purge(cursor) + sum(purge(cursor) for purge in of_people)).result()

    def recent(self, limit: int = 20, *, without_labels: Sequence[str] = ()) -> list[TrialSummary]:
        """Return the latest trials, newest first, leaving out those with one of these labels."""
        with self.file.reading() as cursor:
            rows = fetch(
                cursor.execute(
                    f"SELECT *, {NUM_TOKENS} AS num_tokens FROM (SELECT * REPLACE (text[1:?] AS text) FROM trials "
                    "WHERE deleted_at IS NULL AND NOT list_contains(?::VARCHAR[], label) "
                    "ORDER BY created_at DESC, id DESC LIMIT ?) AS trials ORDER BY created_at DESC, id DESC",
                    [OUTPUT_CHARACTERS, list(without_labels), limit],
                )
            )
        return [columns.summary_of(row) for row in rows]

    def children(self, id: str) -> list[TrialSummary]:
        """Return the trials that continue or regenerate this one, oldest first."""
        uuid = as_uuid(id)
        with self.file.reading() as cursor:
            rows = fetch(
                cursor.execute(
                    f"SELECT *, {NUM_TOKENS} AS num_tokens FROM (SELECT * REPLACE (text[1:?] AS text) FROM trials "
                    "WHERE deleted_at IS NULL AND parent = ?) AS trials ORDER BY created_at, id",
                    [OUTPUT_CHARACTERS, uuid],
                )
            )
        return [columns.summary_of(row) for row in rows]

    def family(self, id: str) -> list[Relative]:
        """Return the trials that come from the same one as this one, see `families.read_family`."""
        with self.file.reading() as cursor:
            return read_family(cursor, id)

    def relatives(self, id: str) -> list[TrialRecord]:
        """Return the trials of the family of this one with all their steps, the oldest first."""
        return [trial for one in self.family(id) if (trial := self.trial(one.id))]

    def paths(self, ids: list[str]) -> dict[str, TokenPath]:
        """Return the generated tokens of trials by id, as `branch_tree.branches_of` takes them."""
        with self.file.reading() as cursor:
            return read_paths(cursor, ids)

    def ids_with(self, prefix: str, limit: int) -> list[str]:
        """Return the ids of up to `limit` trials that begin with `prefix`, newest first."""
        with self.file.reading() as cursor:
            found = cursor.execute(
                "SELECT id::VARCHAR FROM trials WHERE deleted_at IS NULL AND starts_with(id::VARCHAR, ?) "
                "ORDER BY created_at DESC, id DESC LIMIT ?",
                [prefix, limit],
            )
            return [id for (id,) in found.fetchall()]

    def trial(self, id: str) -> TrialRecord | None:
        """Return a trial with all its steps; None where it does not exist or is deleted."""
        uuid = as_uuid(id)
        if uuid is None:
            return None
        with self.file.reading() as cursor:
            rows = fetch(cursor.execute("SELECT * FROM trials WHERE id = ? AND deleted_at IS NULL", [uuid]))
            if not rows:
                return None
            vocabulary = self._vocabulary(cursor, rows[0]["tokenizer"])
            prompt_steps, steps = (
                columns.step_table(
                    cursor.table(
                        "SELECT * FROM steps WHERE trial_id = ? AND is_prompt = ? ORDER BY position", [uuid, is_prompt]
                    ),
                    vocabulary,
                    is_prompt=is_prompt,
                    stages=() if is_prompt else columns.stages_in(rows[0]),
                )
                for is_prompt in (True, False)
            )
        return columns.trial_of(rows[0], prompt_steps, steps)

    def _vocabulary(self, cursor: ReadCursor, hash: str) -> Vocabulary:
        vocabulary = self._vocabularies.get(hash)
        if vocabulary is None:
            (row,) = fetch(cursor.execute("SELECT * FROM tokenizers WHERE hash = ?", [hash]))
            self._vocabularies[hash] = vocabulary = columns.vocabulary_of(row)
            for oldest in list(self._vocabularies)[:-MOST_VOCABULARIES]:
                self._vocabularies.pop(oldest, None)
        return vocabulary

    def _set_deleted(self, id: str, when: datetime | None) -> bool:
        change = "UPDATE trials SET deleted_at = ? WHERE id = ?"
        return self.file.write(lambda cursor: is_changed(cursor.execute(change, [when, as_uuid(id)]))).result()


def _store(cursor: Cursor, trial: TrialRecord) -> None:
    _insert(cursor, [trial])


def _insert(cursor: Cursor, trials: Sequence[TrialRecord]) -> int:
    """Store the trials that are not stored yet; return their bytes in memory."""
    by_id = {trial.id: trial for trial in trials}
    vocabularies = {(one := trial.completion.steps.vocabulary).hash: one for trial in trials}
    for id in _stored(cursor, [*by_id], [*vocabularies]):
        by_id.pop(id, None)
        vocabularies.pop(id, None)
    if not by_id:
        return 0
    for vocabulary in vocabularies.values():
        insert_row(cursor, "tokenizers", columns.tokenizer_row(vocabulary))
    rows = pa.Table.from_pylist([columns.trial_row(trial) for trial in by_id.values()])
    insert_rows(cursor, "trials", rows)
    num_bytes = int(rows.nbytes)
    for chunk in columns.step_rows(*by_id.values()):
        insert_rows(cursor, "steps", chunk)
        num_bytes += int(chunk.nbytes)
    return num_bytes


def _stored(cursor: Cursor, ids: Sequence[str], hashes: Sequence[str]) -> list[str]:
    """Return which of these trials and tokenizers are stored. One query, as each takes a millisecond by itself."""
    found = cursor.execute(
        f"SELECT id::VARCHAR FROM trials WHERE id IN ({_marks(ids)}) "
        f"UNION ALL SELECT hash FROM tokenizers WHERE hash IN ({_marks(hashes)})",
        [*ids, *hashes],
    )
    return [id for (id,) in found.fetchall()]


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))


def _purge(cursor: Cursor) -> int:
    doomed = [id for (id,) in cursor.execute("SELECT id FROM trials WHERE deleted_at IS NOT NULL").fetchall()]
    if doomed:
        marks.purge(cursor, "trial")
        cursor.execute("DELETE FROM steps WHERE trial_id IN (SELECT id FROM trials WHERE deleted_at IS NOT NULL)")
        cursor.execute("DELETE FROM trials WHERE deleted_at IS NOT NULL")
        vectors.purge(cursor)
        cursor.execute("DELETE FROM tokenizers WHERE hash NOT IN (SELECT tokenizer FROM trials)")
    return len(doomed)
