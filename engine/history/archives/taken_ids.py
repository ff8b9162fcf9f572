"""Arriving trials whose id belongs to another trial of the history: they get a new one."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from engine.history import columns
from engine.history.archives.parts import IDS_AT_ONCE, STEPS, TRIALS, ArchivedTrial, no_steps
from engine.history.archives.staging import Staging
from engine.history.database_writer import Cursor, fetch
from engine.history.step_checks import STEP_COLUMNS, checked_steps
from engine.history.trials import TrialRecord, as_uuid
from engine.ids import content_id

_APART = ("model_path", "parent", "tokenizer", "mean_surprise_bits")
"""Columns of a trial that are not compared: the model's place, what is compared by itself, what follows from steps."""

_COMPARED = {name: name for name in STEP_COLUMNS if name != "trial_id"}
# Where a step has no candidates, their final probabilities are an empty list or none at all.
_COMPARED["top_p_final"] = "if(len(top_ids) = 0, NULL, top_p_final)"
_FIGURES = ", ".join(_COMPARED.values())
_STORED = f"SELECT trial_id::VARCHAR, {_FIGURES} FROM steps WHERE trial_id IN (SELECT unnest(?::UUID[]))"
_ARRIVING = f"SELECT trial_id, {_FIGURES} FROM arriving"


def new_ids(cursor: Cursor, staging: Staging) -> dict[str, str]:
    """Return a new id for each staged trial whose id belongs to a trial with other content, by its present id.

    It is made of the trial's content, so that a file that arrives twice gets the same ones. Raises ValueError, or the
    errors of `Staging`, for invalid content.
    """
    staged = {part.id: part for parts in staging.pieces(TRIALS, ArchivedTrial, IDS_AT_ONCE) for part in parts}
    ids = [id for id in staged if as_uuid(id) is not None]
    rows = fetch(cursor.execute("SELECT * FROM trials WHERE id IN (SELECT unnest(?::UUID[]))", [ids]))
    taken = {str(row["id"]): row for row in rows if str(row["id"]) in staged}
    if not taken:
        return {}
    steps = _steps(staging, taken)
    differing = {id for id, row in taken.items() if not _is_same(staged[id], row)}
    differing |= _with_other_steps(cursor, steps, taken)
    found: dict[str, str] = {}
    while differing:
        found |= {
            id: content_id(msgspec.msgpack.encode((staged[id], _of(steps, [id]).to_pylist()))) for id in differing
        }
        differing = {id for id in taken.keys() - found.keys() if not _has_parent(taken[id], staged[id].parent, found)}
    return found


def _is_same(part: ArchivedTrial, row: dict[str, Any]) -> bool:
    """Return whether a stored trial is the arriving one, apart from their parents and their steps."""
    stored = columns.trial_of(row, no_steps(), no_steps())
    return row["tokenizer"] == part.tokenizer and _content(stored) == _content(part.read(no_steps(), no_steps()))


def _has_parent(row: dict[str, Any], parent: str | None, new_ids: dict[str, str]) -> bool:
    return str(row["parent"]) == str(new_ids.get(parent, parent) if parent else None)


def _content(trial: TrialRecord) -> dict[str, Any]:
    return {name: value for name, value in columns.trial_row(trial).items() if name not in _APART}


def _steps(staging: Staging, ids: Iterable[str]) -> pa.Table:
    """Return the staged steps of these trials."""
    tables = [_of(table, ids) for table in staging.tables(STEPS)]
    return checked_steps(pa.concat_tables([pa.schema(STEP_COLUMNS).empty_table(), *tables]), STEPS)


def _of(steps: pa.Table, ids: Iterable[str]) -> pa.Table:
    return steps.filter(pc.is_in(steps["trial_id"], pa.array(ids, pa.string())))


def _with_other_steps(cursor: Cursor, steps: pa.Table, ids: Iterable[str]) -> set[str]:
    """Return those of the stored trials whose steps are not these."""
    cursor.register("arriving", steps)
    found = cursor.execute(
        f"SELECT trial_id FROM (({_ARRIVING} EXCEPT {_STORED}) UNION ALL ({_STORED} EXCEPT {_ARRIVING}))",
        [list(ids), list(ids)],
    ).fetchall()
    cursor.unregister("arriving")
    return {id for (id,) in found}
