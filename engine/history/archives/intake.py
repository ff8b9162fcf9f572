"""Import of a staging folder into the history: atomic, without duplicates, never overwriting existing entries.

The content may come from any source: its figures, and the references between its parts, are checked before anything
is stored.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from engine.comparing.beams import Beams
from engine.errors import ConfigError
from engine.files import scratch_folder
from engine.history import columns, run_columns
from engine.history.archives.arriving_rows import Arriving
from engine.history.archives.members import telling
from engine.history.archives.parts import (
    COMPARISONS,
    IDS_AT_ONCE,
    MARKS,
    RUNS,
    SAMPLES,
    STEPS,
    TOKENIZERS,
    TRIALS,
    ArchivedTrial,
    Mark,
    StagedComparison,
    no_steps,
)
from engine.history.archives.reading import stage_archive
from engine.history.archives.staging import Staging, StagingWriter
from engine.history.archives.taken_ids import new_ids
from engine.history.beam_part import check_beams
from engine.history.database_writer import Cursor, insert_rows
from engine.history.marks import retag
from engine.history.run_file import RunPart, checked_samples
from engine.history.step_checks import STEP_COLUMNS, checked_steps
from engine.history.store import History
from engine.history.trial_file import TokenizerPart
from engine.history.trials import as_uuid
from engine.runs import RunRecord
from engine.samples import no_samples

_OF_LINES, _OF_READING = 0.1, 0.6
"""Progress, as a share of the whole time: after the lines (runs and trials), and after the samples."""

_FAULTS = {
    "a sample refers to a configuration that its run does not have": """
        SELECT 1 FROM samples ANTI JOIN cells ON cells.run_id = samples.run_id AND cells.number = samples.cell
        WHERE samples.run_id IN (SELECT id::UUID FROM arrived WHERE size IS NULL)""",
    "two samples of one run have the same position": """
        SELECT 1 FROM samples WHERE run_id IN (SELECT id::UUID FROM arrived WHERE size IS NULL)
        GROUP BY run_id, position HAVING count(*) > 1""",
    "two steps of one trial have the same position": """
        SELECT 1 FROM steps WHERE trial_id IN (SELECT id::UUID FROM arrived WHERE size IS NOT NULL)
        GROUP BY trial_id, is_prompt, position HAVING count(*) > 1""",
    "a step has a token that is not in its tokenizer": """
        SELECT 1 FROM steps JOIN arrived ON steps.trial_id = arrived.id::UUID
        WHERE greatest(steps.id, list_max(steps.top_ids)) >= arrived.size""",
}


class Imported(NamedTuple):
    """Result of an import: ids of the new or restored runs and trials, and the number of known ones, left unchanged.

    new_ids: ids of trials that arrived under a new one, as their own belonged to other trials, with the new one.
    """

    run_ids: tuple[str, ...]
    trial_ids: tuple[str, ...]
    num_known: int
    new_ids: dict[str, str]

    @property
    def num_runs(self) -> int:
        """Number of runs that are new in this history, or restored."""
        return len(self.run_ids)

    @property
    def num_trials(self) -> int:
        """Number of trials that are new in this history, or restored."""
        return len(self.trial_ids)


def import_archive(
    history: History,
    source: bytes | str | Path,
    name: str = "",
    on_progress: Callable[[float], object] = lambda _share: None,
) -> Imported:
    """Import the entries of an `export_history` archive that this history lacks; deleted ones are restored.

    The origin of a run measured elsewhere becomes `name`, or the file's name where `name` is empty. `on_progress` is
    called with 0 to 1, also from another thread. Raises HistoryError that says what is wrong with the archive, or
    whatever `on_progress` raises; nothing is stored then.
    """
    name = name or ("archive.zip" if isinstance(source, bytes) else Path(source).name)
    with telling(name), scratch_folder(Path(tempfile.gettempdir()), "logitbench-import") as folder:
        with StagingWriter(folder) as writer:
            for share in stage_archive(source, writer):
                on_progress(share / 2)
        return take_in_staged(history, folder, name, lambda share: on_progress((1 + share) / 2))


def take_in_staged(
    history: History,
    folder: Path,
    name: str,
    on_progress: Callable[[float], object] = lambda _share: None,
    *,
    is_from_here: bool = False,
    keeps_both: bool = False,
) -> Imported:
    """Import the entries of a staging folder that this history lacks, as `import_archive` does.

    is_from_here: measured runs were measured on this machine, and tags are added to those that entries here have.
    keeps_both: a trial whose id belongs to a trial with other content is imported under a new id, which its children
    have as parent.
    """

    def take_in(cursor: Cursor) -> Imported:
        with telling(name):
            staging = Staging(folder)
            changed = new_ids(cursor, staging) if keeps_both else {}
            origin = "measured" if is_from_here else name
            return _Intake(cursor, staging, origin, on_progress, changed, adds_tags=is_from_here).take_in()

    return history.file.write(take_in).result()


class _Intake:
    """Import of one archive in one transaction."""

    def __init__(
        self,
        cursor: Cursor,
        staging: Staging,
        origin: str,
        on_progress: Callable[[float], object],
        new_ids: dict[str, str],
        *,
        adds_tags: bool,
    ) -> None:
        self._cursor, self._staging, self._origin, self._on_progress = cursor, staging, origin, on_progress
        self._adds_tags = adds_tags
        self._new_ids = new_ids  # of trials, by the id that they arrive with
        self._sizes: dict[str, int] = {}  # number of tokens of each tokenizer, by hash
        self._new: dict[str, dict[str, int | None]] = {"runs": {}, "trials": {}}  # ids; of trials with this size
        self._beams: dict[str, tuple[Beams, int]] = {}  # of trials, by id, with the size of the tokenizer
        self._known: dict[str, set[str]] = {"runs": set(), "trials": set()}
        self._restored: dict[str, list[str]] = {"runs": [], "trials": []}

    def take_in(self) -> Imported:
        self._tokenizers()
        self._runs()
        self._trials()
        self._samples()
        self._steps()
        self._marks()
        for plans in self._staging.pieces(COMPARISONS, StagedComparison, IDS_AT_ONCE):
            self._keep_unless_there("comparisons", map(msgspec.structs.asdict, plans))
        self._check()
        self._on_progress(1.0)
        run_ids, trial_ids = ((*self._new[table], *self._restored[table]) for table in ("runs", "trials"))
        num_known = sum(len(self._known[table]) - len(self._restored[table]) for table in ("runs", "trials"))
        return Imported(run_ids, trial_ids, num_known, self._new_ids)

    # lines

    def _tokenizers(self) -> None:
        for parts in self._staging.pieces(TOKENIZERS, TokenizerPart, IDS_AT_ONCE):
            for vocabulary in (part.read() for part in parts):
                self._sizes[vocabulary.hash] = len(vocabulary)
                self._keep_unless_there("tokenizers", [columns.tokenizer_row(vocabulary)])

    def _runs(self) -> None:
        for parts in self._staging.pieces(RUNS, RunPart, IDS_AT_ONCE):
            runs = [part.read(no_samples()) for part in parts]
            wanted = self._unknown("runs", [(run.id, None) for run in runs])
            new = [_arrived(run, self._origin) for run in runs if run.id in wanted]
            self._insert("runs", map(run_columns.run_row, new))
            cells = [run_columns.cell_rows(run.id, run.cells) for run in new]
            if cells:
                insert_rows(self._cursor, "cells", pa.concat_tables(cells))
            self._on_progress(_OF_LINES)

    def _trials(self) -> None:
        for parts in self._staging.pieces(TRIALS, ArchivedTrial, IDS_AT_ONCE):
            rows = [self._trial_row(self._renamed(part)) for part in parts]
            wanted = self._unknown("trials", [(row["id"], self._sizes[row["tokenizer"]]) for row in rows])
            self._insert("trials", (row for row in rows if row["id"] in wanted))
            self._on_progress(_OF_LINES)

    def _renamed(self, part: ArchivedTrial) -> ArchivedTrial:
        """Return the trial with its new id, and that of its parent."""
        parent = part.parent and self._new_ids.get(part.parent, part.parent)
        return msgspec.structs.replace(part, id=self._new_ids.get(part.id, part.id), parent=parent)

    def _trial_row(self, part: ArchivedTrial) -> dict[str, Any]:
        size = self._sizes.get(part.tokenizer)
        if size is None:
            raise ValueError(f"{TRIALS}: the tokenizer of trial {part.id} is not in {TOKENIZERS}")
        if part.prompt_ids and not 0 <= min(part.prompt_ids) <= max(part.prompt_ids) < size:
            raise ValueError(f"{TRIALS}: the prompt of trial {part.id} has a token that is not in its tokenizer")
        trial = part.read(no_steps(), no_steps())
        row, id = columns.trial_row(trial), str(as_uuid(part.id))
        if trial.beams is not None:
            self._beams[id] = trial.beams, size
        changed = {"id": id, "mean_surprise_bits": part.mean_surprise_bits}
        return {**row, **changed, "tokenizer": part.tokenizer}

    def _marks(self) -> None:
        for marks in self._staging.pieces(MARKS, Mark, IDS_AT_ONCE):
            rows = map(msgspec.structs.asdict, marks)
            self._keep_unless_there("marks", ({**row, "tags": sorted({*row["tags"]})} for row in rows))
            for mark in marks if self._adds_tags else ():
                try:
                    retag(self._cursor, mark.kind, str(mark.id), mark.tags)
                except ConfigError as error:
                    raise ValueError(str(error)) from error

    # tables

    def _samples(self) -> None:
        def arriving() -> Iterator[pa.Table]:
            num_rows = 0
            for table in self._staging.tables(SAMPLES):
                self._on_progress(_OF_LINES)
                samples = checked_samples(table, partial(_row, num_rows))
                num_rows += len(table)
                rows = run_columns.sample_table(samples).append_column("run_id", table["run_id"])
                yield rows.select(schema.names).filter(self._is_new("runs", table["run_id"], SAMPLES))

        schema = run_columns.sample_table(no_samples()).schema.append(pa.field("run_id", pa.string()))
        Arriving(schema, arriving).insert(self._cursor, "samples")

    def _steps(self) -> None:
        def arriving() -> Iterator[pa.Table]:
            num_rows = 0
            for table in self._staging.tables(STEPS):
                self._on_progress(_OF_READING)
                rows = checked_steps(table, f"{STEPS}, rows {num_rows} to {num_rows + len(table)}")
                num_rows += len(table)
                ids = self._step_ids(table["trial_id"])
                rows = rows.set_column(rows.column_names.index("trial_id"), "trial_id", ids)
                yield rows.select(schema.names).filter(self._is_new("trials", ids, STEPS))

        schema = pa.schema(STEP_COLUMNS)
        Arriving(schema, arriving).insert(self._cursor, "steps")

    def _step_ids(self, ids: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the new id of each step's trial."""
        old, new = pa.array(self._new_ids, pa.string()), pa.array(self._new_ids.values(), pa.string())
        return pc.coalesce(pc.take(new, pc.index_in(ids, old)), ids)

    def _is_new(self, kind: str, ids: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """Return for each row whether to store it; raises ValueError if its run or trial is not in the archive."""
        is_new = pc.is_in(ids, pa.array(self._new[kind], pa.string()))
        is_known = pc.is_in(ids, pa.array(self._known[kind], pa.string()))
        if not pc.all(pc.or_(is_new, is_known), min_count=0).as_py():
            raise ValueError(f"{name} has a row that belongs to none of the archive's {kind}")
        return is_new

    # entries that exist already

    def _unknown(self, table: str, arriving: list[tuple[str, int | None]]) -> set[str]:
        """Return those of the ids that are new to this history; entries that were deleted are restored."""
        ids = [id for id, _ in arriving]
        if len(set(ids)) < len(ids) or set(ids) & (self._new[table].keys() | self._known[table]):
            raise ValueError(f"it has two {table} with the same id")
        found = self._cursor.execute(
            f"SELECT id, deleted_at FROM {table} WHERE id IN (SELECT unnest(?::UUID[]))", [ids]
        ).fetchall()
        known = {str(id) for id, _ in found}
        restored = [str(id) for id, deleted_at in found if deleted_at is not None]
        self._cursor.execute(f"UPDATE {table} SET deleted_at = NULL WHERE id IN (SELECT unnest(?::UUID[]))", [restored])
        self._known[table] |= known
        self._restored[table] += restored
        self._new[table] |= {id: size for id, size in arriving if id not in known}
        return set(ids) - known

    def _insert(self, table: str, rows: Iterable[dict[str, Any]]) -> None:
        arriving = list(rows)
        if arriving:
            insert_rows(self._cursor, table, pa.Table.from_pylist(arriving))

    def _keep_unless_there(self, table: str, rows: Iterable[dict[str, Any]]) -> None:
        """Insert the rows whose key does not exist yet."""
        for row in rows:
            places = ", ".join("?" * len(row))
            self._cursor.execute(
                f"INSERT OR IGNORE INTO {table} ({', '.join(row)}) VALUES ({places})", list(row.values())
            )

    def _check(self) -> None:
        """Check the references between the members of the archive. Raises ValueError for the first fault."""
        arrived = {id: size for ids in self._new.values() for id, size in ids.items()}
        self._cursor.register(
            "arrived", pa.table({"id": pa.array(arrived, pa.string()), "size": pa.array(arrived.values(), pa.int64())})
        )
        for fault, query in _FAULTS.items():
            if self._cursor.execute(f"{query} LIMIT 1").fetchone():
                raise ValueError(fault)
        self._cursor.unregister("arrived")
        for id in self._beams.keys() & self._new["trials"].keys():
            query = "SELECT id FROM steps WHERE trial_id = ? AND NOT is_prompt ORDER BY position"
            ids = [token for (token,) in self._cursor.execute(query, [id]).fetchall()]
            check_beams(*self._beams[id], ids)


def _arrived(run: RunRecord, origin: str) -> RunRecord:
    """Return the run as imported: a measured one gets `origin`, and the status "running" becomes "interrupted"."""
    origin = origin if run.origin == "measured" else run.origin
    return replace(run, origin=origin, status="interrupted" if run.status == "running" else run.status)


def _row(before: int, row: int) -> str:
    return f"{SAMPLES}, row {before + row}"
