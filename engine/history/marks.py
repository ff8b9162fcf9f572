"""Marks that people put on runs, trials and comparisons: star, archive, note and tags."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal, get_args

from engine.errors import ConfigError
from engine.history.checks import checked_text
from engine.history.database_writer import Cursor, DatabaseWriter
from engine.history.trials import as_uuid

Kind = Literal["run", "trial", "comparison"]
KINDS: tuple[Kind, ...] = get_args(Kind)

NOTE_CHARACTERS = 10_000
TAG_CHARACTERS = 50
MOST_TAGS = 50
MOST_IDS = 10_000

_OWNERS = {"run": "runs", "trial": "trials", "comparison": "comparisons"}


class Marks:
    """Marks by kind and id; each method is one change, on disk when it returns. May be called from any thread.

    All raise ConfigError for an unknown kind, an id that is not a UUID, and text that is too long. An id need not be in
    this history: reference timings can be marked too.
    """

    def __init__(self, file: DatabaseWriter) -> None:
        self._file = file

    def star(self, kind: Kind, ids: Iterable[str], is_starred: bool) -> None:
        """Add stars, or remove them."""
        self._set(kind, ids, "is_starred", is_starred)

    def archive(self, kind: Kind, ids: Iterable[str], is_archived: bool) -> None:
        """Archive entries, which lists then hide by default, or unarchive them."""
        self._set(kind, ids, "is_archived", is_archived)

    def note(self, kind: Kind, id: str, text: str) -> None:
        """Replace the note; an empty text removes it."""
        self._set(kind, [id], "note", checked_text("note", text, NOTE_CHARACTERS))

    def tag(self, kind: Kind, ids: Iterable[str], *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> None:
        """Add tags and remove others; each is stored once, in alphabetical order.

        Raises ConfigError for an empty tag, one with a comma, and where an entry would have more than 50.
        """
        chosen, added, removed = _ids(kind, ids), set(map(_tag, add)), set(map(_tag, remove))

        def change(cursor: Cursor) -> None:
            for id in chosen:
                retag(cursor, kind, id, added, removed)

        self._write(change)

    def tags_of(self, kind: Kind, id: str) -> list[str]:
        """Return the tags of one entry, in alphabetical order."""
        (checked,) = _ids(kind, [id])
        with self._file.reading() as cursor:
            row = cursor.execute("SELECT tags FROM marks WHERE kind = ? AND id = ?", [kind, checked]).fetchone()
        return list(row[0] or ()) if row else []

    def tags(self) -> list[str]:
        """Return every tag in use, in alphabetical order."""
        with self._file.reading() as cursor:
            rows = cursor.execute("SELECT DISTINCT unnest(tags) AS tag FROM marks ORDER BY tag").fetchall()
        return [tag for (tag,) in rows]

    def _set(self, kind: Kind, ids: Iterable[str], column: str, value: Any) -> None:
        chosen = _ids(kind, ids)
        self._write(lambda cursor: _upsert(cursor, kind, chosen, column, value))

    def _write(self, change: Callable[[Cursor], None]) -> None:
        self._file.write(change).result()


def retag(cursor: Cursor, kind: Kind, id: str, added: Collection[str], removed: Collection[str] = frozenset()) -> None:
    """Add checked tags to those of an entry, and remove others. Raises ConfigError where it would have more than 50."""
    rows = cursor.execute("SELECT tags FROM marks WHERE kind = ? AND id = ?", [kind, id]).fetchall()
    before = [tag for (tags,) in rows for tag in tags]
    tags = sorted({*before, *added}.difference(removed))
    if len(tags) > MOST_TAGS:
        raise ConfigError(f"tags: this {kind} would have {len(tags)}; up to {MOST_TAGS} are allowed")
    if tags != before:
        _upsert(cursor, kind, [id], "tags", tags)


def purge(cursor: Cursor, kind: Kind) -> None:
    """Remove the marks of entries that are about to be purged."""
    cursor.execute(
        f"DELETE FROM marks WHERE kind = ? AND id IN (SELECT id FROM {_OWNERS[kind]} WHERE deleted_at IS NOT NULL)",
        [kind],
    )


def _upsert(cursor: Cursor, kind: Kind, ids: list[str], column: str, value: Any) -> None:
    cursor.execute(
        f"INSERT INTO marks (kind, id, {column}) SELECT ?, unnest(?::UUID[]), ? "
        f"ON CONFLICT (kind, id) DO UPDATE SET {column} = excluded.{column}",
        [kind, ids, value],
    )


def _ids(kind: Kind, ids: Iterable[str]) -> list[str]:
    if kind not in KINDS:
        raise ConfigError(f"kind = {kind!r}: must be one of {', '.join(KINDS)}")
    chosen = list(dict.fromkeys(ids))
    wrong = next((id for id in chosen if as_uuid(id) is None), None)
    if wrong is not None:
        raise ConfigError(f"id = {wrong!r}: must be a UUID as text")
    if len(chosen) > MOST_IDS:
        raise ConfigError(f"ids: there are {len(chosen):,}; up to {MOST_IDS:,} can be marked at once")
    return chosen


def _tag(text: str) -> str:
    tag = checked_text("tag", text.strip(), TAG_CHARACTERS)
    if not tag or "," in tag:
        raise ConfigError(f"tag = {text!r}: must have 1 to {TAG_CHARACTERS} characters and no comma")
    return tag
