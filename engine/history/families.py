"""Families of trials: those of one prompt that continue, repeat or branch from each other, with their tokens."""

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.comparing.branch_tree import TokenPath
from engine.history.database_writer import fetch
from engine.history.read_cursor import ReadCursor
from engine.history.trials import as_uuid
from engine.step_parts import FORCED

Column = npt.NDArray[Any]
MOST_MEMBERS = 1000
"""Trials of a family that are read, the oldest first."""

_RELATIVES = """
WITH RECURSIVE
above AS (
    SELECT id, parent FROM trials WHERE id = $id
    UNION SELECT trials.id, trials.parent FROM trials JOIN above ON trials.id = above.parent
),
family AS (
    SELECT id FROM above
    UNION SELECT trials.id FROM trials JOIN family ON trials.parent = family.id
)
SELECT trials.id::VARCHAR AS id, created_at, label, seed, finish_reason, coalesce(is_starred, false) AS is_starred,
    coalesce(note, '') AS note
FROM trials LEFT JOIN marks ON marks.kind = 'trial' AND marks.id = trials.id
WHERE trials.id IN (SELECT id FROM family) AND deleted_at IS NULL
    AND prompt_ids = (SELECT prompt_ids FROM trials WHERE id = $id)
ORDER BY created_at, trials.id LIMIT $most
"""
_STEPS = """
SELECT trial_id::VARCHAR AS trial_id, id, logprob, flags FROM steps
WHERE NOT is_prompt AND trial_id IN (SELECT unnest($ids::UUID[])) ORDER BY trial_id, position
"""


class Relative(NamedTuple):
    """Trial of a family: what its list shows, and the marks that people gave it."""

    id: str
    created_at: datetime
    label: str
    seed: int
    finish_reason: str
    is_starred: bool
    note: str


def read_family(cursor: ReadCursor, id: str) -> list[Relative]:
    """Return the stored family of a trial, itself included, the oldest first; empty where it is not stored.

    A deleted trial is left out, those that come from it are not. Of a larger family only MOST_MEMBERS are read.
    """
    uuid = as_uuid(id)
    rows = fetch(cursor.execute(_RELATIVES, {"id": uuid, "most": MOST_MEMBERS})) if uuid is not None else []
    return [Relative(**{**row, "created_at": row["created_at"].replace(tzinfo=UTC)}) for row in rows]


def read_paths(cursor: ReadCursor, ids: list[str]) -> dict[str, TokenPath]:
    """Return the generated tokens of trials by id; trials without any are left out."""
    table = cursor.table(_STEPS, {"ids": ids})
    owners = table["trial_id"].to_numpy()
    columns = [table[name].to_numpy() for name in ("id", "logprob", "flags")]
    starts = [0, *(np.flatnonzero(owners[1:] != owners[:-1]) + 1).tolist(), len(owners)]
    parts = [slice(*ends) for ends in pairwise(starts)] if len(owners) else []
    return {owners[part.start]: _path(owners[part.start], *(column[part] for column in columns)) for part in parts}


def _path(id: str, tokens: Column, logprobs: Column, flags: Column) -> TokenPath:
    return TokenPath(id, tokens.astype(np.int32), logprobs.astype(np.float64), flags.astype(np.int32) & FORCED != 0)
