"""Comparisons of trials in the history: the plan and the ids of its trials, which are stored like any other trial."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from engine.comparing.arms import (
    Answer,
    ComparisonPlan,
    ComparisonRecord,
    ComparisonSummary,
    Outcome,
    one_answer_each,
)
from engine.errors import ConfigError
from engine.history.checks import checked_text, stored_time
from engine.history.database_writer import Cursor, DatabaseWriter, fetch, insert_row, is_changed
from engine.history.trials import as_uuid

NAME_CHARACTERS = 200
PROMPT_CHARACTERS = 200
_SET_DELETED = "UPDATE comparisons SET deleted_at = ? WHERE id = ?"


class Comparisons:
    """The comparisons of a history file. All methods may be called from any thread and wait for the disk."""

    def __init__(self, file: DatabaseWriter) -> None:
        self._file = file

    def save(self, record: ComparisonRecord) -> None:
        """Store a comparison; of one that is already stored, only the answers are updated.

        Raises ConfigError unless its id is a UUID and its name is not too long.
        """
        if as_uuid(record.id) is None:
            raise ConfigError(f"id = {record.id!r}: must be a UUID as text")
        row = {
            "id": record.id,
            "created_at": stored_time(record.created_at),
            "name": checked_text("name", record.name, NAME_CHARACTERS),
            "spec": msgspec.json.encode(record.plan.to_dict()).decode(),
            "trials": msgspec.json.encode([answer._asdict() for answer in record.answers]).decode(),
        }

        def save(cursor: Cursor) -> None:
            change = "UPDATE comparisons SET trials = ? WHERE id = ?"
            if not is_changed(cursor.execute(change, [row["trials"], row["id"]])):
                insert_row(cursor, "comparisons", row)

        self._file.write(save).result()

    def comparison(self, id: str) -> ComparisonRecord | None:
        """Return a comparison; None where it does not exist or is deleted."""
        rows = self._fetch("SELECT * FROM comparisons WHERE id = ? AND deleted_at IS NULL", as_uuid(id))
        return record_of(rows[0]) if rows else None

    def recent(self, limit: int = 20) -> list[ComparisonSummary]:
        """Return the latest comparisons, newest first."""
        rows = self._fetch(
            "SELECT * FROM comparisons WHERE deleted_at IS NULL ORDER BY created_at DESC, id DESC LIMIT ?", limit
        )
        return [_summary_of(record_of(row)) for row in rows]

    def outcomes(self, trial_ids: Sequence[str]) -> list[Outcome]:
        """Return the outcomes of these trials, without their steps; deleted or unknown trials are left out."""
        rows = self._fetch(
            "SELECT id AS trial_id, text, model_name, model_quantisation AS quantisation, seed, num_generated, ttft_s, "
            "CASE WHEN decode_s > 0 AND num_generated > 1 THEN (num_generated - 1) / decode_s END AS decode_per_s, "
            "mean_surprise_bits FROM trials WHERE id IN (SELECT unnest(?::UUID[])) AND deleted_at IS NULL",
            [id for id in trial_ids if as_uuid(id)],
        )
        return [Outcome(**{**row, "trial_id": str(row["trial_id"])}) for row in rows]

    def rename(self, id: str, name: str) -> bool:
        """Rename a comparison (the name may be empty); return False where it does not exist.

        Raises ConfigError where the name is too long.
        """
        checked = checked_text("name", name, NAME_CHARACTERS).strip()
        return self._changes("UPDATE comparisons SET name = ? WHERE id = ?", checked, as_uuid(id))

    def delete(self, id: str) -> bool:
        """Hide a comparison, not its trials, until `restore`, or until the next open purges it."""
        return self._changes(_SET_DELETED, datetime.now(UTC).replace(tzinfo=None), as_uuid(id))

    def restore(self, id: str) -> bool:
        """Undo `delete`; return False where the comparison no longer exists."""
        return self._changes(_SET_DELETED, None, as_uuid(id))

    def _fetch(self, query: str, *values: object) -> list[dict[str, Any]]:
        with self._file.reading() as cursor:
            return fetch(cursor.execute(query, list(values)))

    def _changes(self, statement: str, *values: object) -> bool:
        return self._file.write(lambda cursor: is_changed(cursor.execute(statement, list(values)))).result()


def purge(cursor: Cursor) -> int:
    """Remove deleted comparisons; return their number."""
    return len(cursor.execute("DELETE FROM comparisons WHERE deleted_at IS NOT NULL RETURNING id").fetchall())


def record_of(row: Mapping[str, Any]) -> ComparisonRecord:
    """Return the comparison of a row of `comparisons`; raises ConfigError where its plan is invalid.

    Answers outside the plan, which earlier versions accepted from archives, are left out.
    """
    plan = ComparisonPlan.from_dict(msgspec.json.decode(row["spec"]))
    answers = [Answer(**answer) for answer in msgspec.json.decode(row["trials"])]
    return ComparisonRecord(
        id=str(row["id"]),
        created_at=row["created_at"].replace(tzinfo=UTC),
        name=row["name"],
        plan=plan,
        answers=one_answer_each(plan, answers),
    )


def _summary_of(record: ComparisonRecord) -> ComparisonSummary:
    return ComparisonSummary(
        id=record.id,
        created_at=record.created_at,
        name=record.name,
        prompt=record.plan.prompt[:PROMPT_CHARACTERS],
        num_arms=len(record.plan.arms),
        num_trials=record.plan.num_trials,
    )
