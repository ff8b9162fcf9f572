"""Embedding vectors of trials' prompts and outputs, for similarity search.

They are stored alongside the trials while enabled, are deleted with them, and can be recomputed at any time.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from engine.errors import ConfigError
from engine.history.conditions import TRIALS, of_trials
from engine.history.database_writer import Cursor, DatabaseWriter, insert_row, insert_rows
from engine.history.filters import Filter
from engine.history.found_rows import trial_rows
from engine.history.search import EVERYTHING, MOST_ROWS, Found
from engine.history.trials import as_uuid
from engine.step_parts import Floats

Part = Literal["prompt", "output"]
PARTS: tuple[Part, ...] = get_args(Part)

DIM = 384
READ_CHARACTERS = 20_000
"""Characters of a text that are read: many times the input length of an embedding model of this size."""

_SMALLEST_NORM = 1e-6
_WRITTEN = r"[^\s\p{Z}]"

_QUESTION = """CASE WHEN trials.messages <> '[]' THEN coalesce((trials.messages ->> '$[*].content')[-1], '')
    ELSE trials.prompt END"""
_TEXT = f"CASE part WHEN 'prompt' THEN {_QUESTION} ELSE trials.text END"
_UNREAD = """
    SELECT id, part FROM trials, (SELECT unnest(['prompt', 'output']) AS part) WHERE deleted_at IS NULL
    EXCEPT SELECT trial_id, part FROM vectors WHERE model_hash = $model"""
_IS_READ = "vector IS NOT NULL AND EXISTS (SELECT 1 FROM trials WHERE id = trial_id AND deleted_at IS NULL)"


class Model(NamedTuple):
    """The embedding model whose vectors are stored; hash: of its files."""

    hash: str
    name: str


class Unread(NamedTuple):
    """A text without a vector: a trial's prompt (in a chat the last message) or its output.

    text: its first 20,000 characters. is_longer: there are more.
    """

    trial_id: str
    part: Part
    text: str
    is_longer: bool


class Amount(NamedTuple):
    """Number of texts, and their total bytes in UTF-8, each text counted up to a limit."""

    num_texts: int
    num_bytes: int


class Read(NamedTuple):
    """Number of texts that have a vector, and number of those that were cut."""

    num_texts: int
    num_cut: int


class Vectors:
    """The vectors of a history file. All methods may be called from any thread and wait for the disk."""

    def __init__(self, file: DatabaseWriter) -> None:
        self._file = file

    # the model

    @property
    def model(self) -> Model | None:
        """The model whose vectors are stored; None while vectors are disabled."""
        rows = self._rows("SELECT hash, name FROM vector_models")
        return Model(*rows[0]) if rows else None

    def begin(self, model: Model) -> None:
        """Enable vectors of this model; those of any other model are removed."""

        def change(cursor: Cursor) -> None:
            _forget(cursor, but=model.hash)
            insert_row(cursor, "vector_models", model._asdict(), replaces=True)

        self._file.write(change).result()

    def forget(self) -> None:
        """Remove all vectors, and disable them."""
        self._file.write(lambda cursor: _forget(cursor, but="")).result()

    # reading texts

    def num_unread(self, model_hash: str, most_bytes: int) -> Amount:
        """Count the texts without a vector of this model, leaving out blank ones; each counts up to `most_bytes`."""
        (row,) = self._rows(
            f"SELECT count(*) FILTER (regexp_matches({_TEXT}, '{_WRITTEN}')), "
            f"coalesce(sum(least(strlen({_TEXT}), $most)), 0) "
            f"FROM ({_UNREAD}) AS unread JOIN trials USING (id)",
            {"model": model_hash, "most": most_bytes},
        )
        return Amount(*row)

    def unread(self, model_hash: str, limit: int) -> list[Unread]:
        """Return texts without a vector of this model, those of the newest trials first."""
        rows = self._rows(
            f"SELECT id, part, ({_TEXT})[1:{READ_CHARACTERS}], length({_TEXT}) > {READ_CHARACTERS} "
            f"FROM (SELECT * FROM ({_UNREAD}) ORDER BY id DESC, part LIMIT $limit) JOIN trials USING (id) "
            "ORDER BY id DESC, part",
            {"model": model_hash, "limit": limit},
        )
        return [Unread(str(id), part, text, is_longer) for id, part, text, is_longer in rows]

    def keep(self, model_hash: str, texts: Sequence[Unread], vectors: Floats, is_cut: npt.NDArray[np.bool_]) -> None:
        """Store the vector of each text, float32 (n, 384); a row of NaN where there was no text.

        Nothing is stored for a model that was removed meanwhile. Raises ConfigError for vectors of another shape.
        """
        if vectors.shape != (len(texts), DIM):
            raise ConfigError(f"vectors of shape {vectors.shape}: must be {len(texts)} of {DIM} numbers")
        rows = pa.table(
            {
                "trial_id": [text.trial_id for text in texts],
                "part": [text.part for text in texts],
                "model_hash": [model_hash] * len(texts),
                "is_cut": is_cut,
                "vector": _column(vectors),
            }
        )

        def change(cursor: Cursor) -> None:
            if cursor.execute("SELECT 1 FROM vector_models WHERE hash = ?", [model_hash]).fetchall():
                _forget_texts(cursor, rows)
                insert_rows(cursor, "vectors", rows)

        self._file.write(change).result()

    def num_read(self, model_hash: str) -> Read:
        """Count the texts that have a vector of this model, in trials that are not deleted."""
        (row,) = self._rows(
            f"SELECT count(*), count(*) FILTER (is_cut) FROM vectors WHERE model_hash = $model AND {_IS_READ}",
            {"model": model_hash},
        )
        return Read(*row)

    # finding

    def of_outputs(self, trial_ids: Sequence[str]) -> dict[str, Floats]:
        """Return the vectors of these trials' outputs, by id; trials that are unknown or have none are left out."""
        rows = self._rows(
            "SELECT trial_id, vector FROM vectors JOIN vector_models ON hash = model_hash "
            f"WHERE part = 'output' AND trial_id IN (SELECT unnest($ids::UUID[])) AND {_IS_READ}",
            {"ids": [id for id in trial_ids if as_uuid(id)]},
        )
        return {str(id): np.array(vector, np.float32) for id, vector in rows}

    def nearest(
        self,
        vector: Floats,
        wanted: Filter = EVERYTHING,
        *,
        part: Part | None = None,
        limit: int = 200,
        offset: int = 0,
    ) -> Found:
        """Return trials by the similarity of `vector` to their prompt and output, or to one part; most similar first.

        Rows as of `Finder.trials`, with similarity (the cosine, from -1 to 1) and matched (the most similar part).
        Trials without a vector are left out. Raises ConfigError unless `vector` is 384 finite numbers, not all of them
        0.
        """
        condition = of_trials(wanted)
        chosen = list(PARTS if part is None else (part,))
        query = f"""
            WITH near AS (
                SELECT trial_id, max(alike) AS similarity, arg_max(part, alike) AS matched
                FROM (
                    SELECT trial_id, part, array_cosine_similarity(vector, ?::FLOAT[{DIM}]) AS alike
                    FROM vectors JOIN vector_models ON hash = model_hash
                    WHERE vector IS NOT NULL AND list_contains(?::VARCHAR[], part)
                ) GROUP BY trial_id
            )
            SELECT trials.id, similarity, matched, count(*) OVER ()
            FROM {TRIALS} JOIN near ON near.trial_id = trials.id
            WHERE {condition} ORDER BY similarity DESC, trials.id LIMIT ? OFFSET ?"""
        values = [_checked(vector), chosen, *condition.values, min(limit, MOST_ROWS), offset]
        with self._file.reading() as cursor:
            keys = cursor.execute(query, values).fetchall()
            rows = trial_rows(cursor, [(id,) for id, *_ in keys])
        found = (
            {**row, "similarity": min(similarity, 1.0), "matched": matched}
            for row, (_, similarity, matched, _) in zip(rows, keys, strict=True)
        )
        return Found.of(found, keys[0][-1] if keys else 0)

    def _rows(self, query: str, values: Mapping[str, object] | None = None) -> list[tuple[Any, ...]]:
        with self._file.reading() as cursor:
            return cursor.execute(query, values).fetchall()


def purge(cursor: Cursor) -> None:
    """Remove the vectors of trials that were purged."""
    cursor.execute("DELETE FROM vectors WHERE trial_id NOT IN (SELECT id FROM trials)")


def _forget_texts(cursor: Cursor, rows: pa.Table) -> None:
    """Remove the vectors that rows replace."""
    cursor.register("replacing", rows.select(["trial_id", "part", "model_hash"]))
    cursor.execute(
        "DELETE FROM vectors USING replacing WHERE vectors.trial_id = replacing.trial_id::UUID "
        "AND vectors.part = replacing.part AND vectors.model_hash = replacing.model_hash"
    )
    cursor.unregister("replacing")


def _forget(cursor: Cursor, *, but: str) -> None:
    cursor.execute("DELETE FROM vectors WHERE model_hash <> ?", [but])
    cursor.execute("DELETE FROM vector_models WHERE hash <> ?", [but])


def _checked(vector: Floats) -> list[float]:
    if vector.shape != (DIM,) or not np.isfinite(vector).all() or float(np.linalg.norm(vector)) < _SMALLEST_NORM:
        raise ConfigError(f"a vector of shape {vector.shape}: must be {DIM} finite numbers, not all of them 0")
    numbers: list[float] = vector.tolist()
    return numbers


def _column(vectors: Floats) -> Any:
    """Return the rows as one column of fixed-size lists, NULL for rows with a NaN."""
    is_missing = pa.array(np.isnan(vectors).any(axis=1))
    values = pa.array(np.ascontiguousarray(vectors, np.float32).ravel())
    return pa.FixedSizeListArray.from_arrays(values, DIM, mask=is_missing)
