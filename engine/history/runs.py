"""Benchmark runs in the history, and saved data for later runs: plans, profiles, limits of a machine."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from engine.errors import HistoryError
from engine.history import marks, run_columns
from engine.history.checks import checked_name
from engine.history.database_writer import Cursor, DatabaseWriter, fetch, insert_row, insert_rows, is_changed
from engine.history.trials import as_uuid
from engine.runs import CellRecord, RunRecord, RunStatus, RunSummary
from engine.samples import Samples

NAME_CHARACTERS = 200
CHUNK = 20_000  # samples per insert: limits the memory of a copy to about 8 MB

_SUMMARY = """
    SELECT id, created_at, name, question, status, origin, model_name, machine_hash, sentence,
        (SELECT count(*) FROM cells WHERE run_id = runs.id) AS num_cells,
        (SELECT count(*) FROM samples WHERE run_id = runs.id) AS num_samples
    FROM runs WHERE deleted_at IS NULL"""
_NEWEST_FIRST = "ORDER BY created_at DESC, id DESC"
_SET_DELETED = "UPDATE runs SET deleted_at = ? WHERE id = ?"


@dataclass(frozen=True)
class Profile:
    """Named settings for the model with this hash.

    pool: a PoolSpec as plain values. source_run: the id of the run that found them, or empty.
    """

    name: str
    model_hash: str
    pool: Mapping[str, Any]
    source_run: str
    saved_at: datetime


class Runs:
    """Runs with every sample ever taken. All methods may be called from any thread.

    `add`, `save_cells` and `replace_flags` return at once, and their data is on disk when their future is done; the
    others wait for the disk. Samples are returned in the order of their positions. For a run that does not exist,
    methods that write into it raise HistoryError, the others return None or False.
    """

    def __init__(self, file: DatabaseWriter) -> None:
        self._file = file
        self._found: dict[tuple[object, ...], tuple[int, tuple[RunSummary, ...]]] = {}

    # A run while it is measured

    def begin(self, run: RunRecord) -> None:
        """Store a run with its configurations and samples so far; raises ConfigError as `run_columns.run_row` does."""
        row = run_columns.run_row(run)
        self._file.write(lambda cursor: _insert(cursor, row, run)).result()

    def save_cells(self, run_id: str, cells: Iterable[CellRecord]) -> Future[None]:
        """Store configurations of a run, replacing any with the same numbers."""
        rows = run_columns.cell_rows(run_id, cells)

        def save(cursor: Cursor) -> None:
            _require(cursor, run_id)
            insert_rows(cursor, "cells", rows, replaces=True)

        return self._file.write(save)

    def add(self, run_id: str, samples: Samples) -> Future[None]:
        """Append samples to a run."""
        rows = run_columns.sample_rows(run_id, samples)

        def add(cursor: Cursor) -> None:
            _require(cursor, run_id)
            insert_rows(cursor, "samples", rows)

        return self._file.write(add)

    def replace_flags(self, run_id: str, positions: Sequence[int]) -> Future[None]:
        """Mark the samples at these positions as replaced: still stored, but no longer counted."""
        chosen = [int(position) for position in positions]

        def mark(cursor: Cursor) -> None:
            _require(cursor, run_id)
            cursor.execute(
                "UPDATE samples SET is_replaced = true WHERE run_id = ? AND position IN (SELECT unnest(?::INTEGER[]))",
                [run_id, chosen],
            )

        return self._file.write(mark)

    def finish(self, run_id: str, status: RunStatus, outcome: Mapping[str, Any]) -> None:
        """Store the final status and the outcome of a run; outcome["sentence"] is its first line."""
        self._update(run_id, {"status": status, **run_columns.outcome_columns(outcome)})

    def resume(self, run_id: str, plan: Mapping[str, Any] | None = None) -> None:
        """Mark a run as running again; `plan`, where given, replaces its plan (more rounds)."""
        self._update(run_id, {"status": "running"} | ({} if plan is None else {"plan": run_columns.to_json(plan)}))

    def mark_interrupted(self) -> None:
        """Mark all runs with status running as interrupted: the processes that ran them are gone."""
        change = "UPDATE runs SET status = 'interrupted' WHERE status = 'running'"
        self._file.write(lambda cursor: cursor.execute(change)).result()

    # Stored runs

    def keep(self, run: RunRecord) -> bool:
        """Store a whole run, such as an imported one; return False where it exists already, and is left unchanged.

        A deleted run is restored. Raises ConfigError unless its id is a UUID.
        """
        row = run_columns.run_row(replace(run, status="interrupted") if run.status == "running" else run)

        def keep(cursor: Cursor) -> bool:
            found = cursor.execute("SELECT deleted_at FROM runs WHERE id = ?", [run.id]).fetchall()
            if not found:
                _insert(cursor, row, run)
                return True
            cursor.execute("UPDATE runs SET deleted_at = NULL WHERE id = ?", [run.id])
            return found != [(None,)]

        return self._file.write(keep).result()

    def put(self, run: RunRecord) -> None:
        """Store a whole run, replacing its stored, maybe partial data; raises ConfigError unless its id is a UUID."""
        row = run_columns.run_row(run)

        def put(cursor: Cursor) -> None:
            cursor.execute("DELETE FROM samples WHERE run_id = ?", [run.id])
            insert_row(cursor, "runs", row, replaces=True)
            _insert_measured(cursor, run)

        self._file.write(put).result()

    def run(self, id: str) -> RunRecord | None:
        """Return a run with its configurations and all its samples; None where it does not exist or is deleted."""
        uuid = as_uuid(id)
        with self._file.reading() as cursor:
            rows = fetch(cursor.execute("SELECT * FROM runs WHERE id = ? AND deleted_at IS NULL", [uuid]))
            if not rows:
                return None
            cells = fetch(cursor.execute("SELECT * FROM cells WHERE run_id = ? ORDER BY number", [uuid]))
            samples = cursor.table("SELECT * FROM samples WHERE run_id = ? ORDER BY position, rowid", [uuid])
        return run_columns.run_of(rows[0], tuple(map(run_columns.cell_of, cells)), run_columns.samples_of(samples))

    def recent(self, limit: int = 50) -> list[RunSummary]:
        """Return the latest runs, newest first."""
        return self._summaries(f"{_SUMMARY} {_NEWEST_FIRST} LIMIT ?", limit)

    def interrupted(self) -> list[RunSummary]:
        """Return runs measured on this machine whose process ended early, newest first: these can be continued."""
        return self._summaries(f"{_SUMMARY} AND status = 'interrupted' AND origin = 'measured' {_NEWEST_FIRST}")

    def newest_id(self) -> str | None:
        """Return the id of the latest run, None where there is none."""
        return next((run.id for run in self.recent(1)), None)

    def rename(self, run_id: str, name: str) -> None:
        """Rename a run; raises ConfigError for an empty or too long name."""
        self._update(run_id, {"name": checked_name(name, NAME_CHARACTERS)})

    def delete(self, run_id: str) -> bool:
        """Hide a run until `restore`, or until the next open purges it; return False where it does not exist."""
        return self._changes(_SET_DELETED, _now(), as_uuid(run_id))

    def restore(self, run_id: str) -> bool:
        """Undo `delete`; return False where the run no longer exists."""
        return self._changes(_SET_DELETED, None, as_uuid(run_id))

    # Plans, profiles, limits

    def save_plan(self, name: str, plan: Mapping[str, Any]) -> None:
        """Save a plan under a name, replacing any with the same name."""
        row = {"name": checked_name(name, NAME_CHARACTERS), "saved_at": _now(), "plan": run_columns.to_json(plan)}
        self._save("plans", row)

    def plans(self) -> dict[str, dict[str, Any]]:
        """Return the plans by name, the latest first."""
        rows = self._fetch("SELECT name, plan FROM plans ORDER BY saved_at DESC, name")
        return {row["name"]: msgspec.json.decode(row["plan"]) for row in rows}

    def delete_plan(self, name: str) -> bool:
        """Delete a plan; return False where there is none of this name."""
        return self._changes("DELETE FROM plans WHERE name = ?", name)

    def save_profile(self, name: str, model_hash: str, pool: Mapping[str, Any], source_run: str = "") -> None:
        """Save settings for a model under a name, replacing any with the same name for the same model."""
        row = {
            "model_hash": model_hash,
            "name": checked_name(name, NAME_CHARACTERS),
            "saved_at": _now(),
            "source_run": source_run,
        }
        self._save("profiles", {**row, "pool": run_columns.to_json(pool)})

    def profiles(self, model_hash: str | None = None) -> list[Profile]:
        """Return the profiles of one model, or of all where it is None; the latest first."""
        rows = self._fetch(
            "SELECT * FROM profiles WHERE model_hash = ? OR ? IS NULL ORDER BY saved_at DESC, name",
            model_hash,
            model_hash,
        )
        return [_profile_of(row) for row in rows]

    def save_limits(self, machine_hash: str, limits: Mapping[str, Any]) -> None:
        """Save the measured limits of a machine, replacing earlier ones."""
        row = {"machine_hash": machine_hash, "measured_at": _now(), "limits": run_columns.to_json(limits)}
        self._save("limits", row)

    def limits(self, machine_hash: str) -> dict[str, Any] | None:
        """Return the measured limits of a machine; None where there are none."""
        rows = self._fetch("SELECT limits FROM limits WHERE machine_hash = ?", machine_hash)
        return msgspec.json.decode(rows[0]["limits"], type=dict[str, Any]) if rows else None

    # Reading and writing

    def _fetch(self, query: str, *values: object) -> list[dict[str, Any]]:
        with self._file.reading() as cursor:
            return fetch(cursor.execute(query, list(values)))

    def _summaries(self, query: str, *values: object) -> list[RunSummary]:
        """Return the runs that a query finds; they are kept until the next write, as a page asks each time it runs."""
        version = self._file.version  # before the query: a write during it makes what is found outdated
        kept = self._found.get((query, *values))
        if kept is None or kept[0] != version or self._file.is_closing:
            kept = version, tuple(run_columns.summary_of(row) for row in self._fetch(query, *values))
            self._found[query, *values] = kept
        return list(kept[1])

    def _update(self, run_id: str, values: Mapping[str, Any]) -> None:
        def update(cursor: Cursor) -> None:
            _require(cursor, run_id)
            changes = ", ".join(f"{name} = ?" for name in values)
            cursor.execute(f"UPDATE runs SET {changes} WHERE id = ?", [*values.values(), run_id])

        self._file.write(update).result()

    def _changes(self, statement: str, *values: object) -> bool:
        return self._file.write(lambda cursor: is_changed(cursor.execute(statement, list(values)))).result()

    def _save(self, table: str, row: dict[str, Any]) -> None:
        self._file.write(lambda cursor: insert_row(cursor, table, row, replaces=True)).result()


def _profile_of(row: dict[str, Any]) -> Profile:
    changed = {"saved_at": row["saved_at"].replace(tzinfo=UTC), "pool": msgspec.json.decode(row["pool"])}
    return Profile(**{**row, **changed})


def purge(cursor: Cursor) -> int:
    """Remove deleted runs with their configurations, samples and marks; return their number."""
    doomed = [id for (id,) in cursor.execute("SELECT id FROM runs WHERE deleted_at IS NOT NULL").fetchall()]
    marks.purge(cursor, "run")
    for table, column in (("samples", "run_id"), ("cells", "run_id"), ("runs", "id")) if doomed else ():
        cursor.execute(f"DELETE FROM {table} WHERE {column} IN (SELECT id FROM runs WHERE deleted_at IS NOT NULL)")
    return len(doomed)


def _insert(cursor: Cursor, row: dict[str, Any], run: RunRecord) -> None:
    insert_row(cursor, "runs", row)
    _insert_measured(cursor, run)


def _insert_measured(cursor: Cursor, run: RunRecord) -> None:
    insert_rows(cursor, "cells", run_columns.cell_rows(run.id, run.cells), replaces=True)
    for start in range(0, len(run.samples), CHUNK):
        insert_rows(cursor, "samples", run_columns.sample_rows(run.id, run.samples[start : start + CHUNK]))


def _require(cursor: Cursor, run_id: str) -> None:
    if not cursor.execute("SELECT 1 FROM runs WHERE id = ?", [as_uuid(run_id)]).fetchall():
        raise HistoryError(f"There is no run {run_id!r} in this history: it was deleted or never saved.")


def _now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)
