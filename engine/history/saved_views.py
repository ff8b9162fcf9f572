"""Saved views of the History page: named filter sets, as the query parameters of the page's address."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from engine.errors import ConfigError, HistoryError
from engine.history.checks import checked_name, checked_text
from engine.history.database_writer import Cursor, DatabaseWriter, fetch, insert_row, is_changed

NAME_CHARACTERS = 60
MOST_PARTS, PART_CHARACTERS = 50, 20_000
MOST_VIEWS = 40


@dataclass(frozen=True)
class SavedView:
    """A named view. query: the address's parameters by name; saved_at: in UTC."""

    name: str
    query: Mapping[str, str]
    saved_at: datetime


class SavedViews:
    """The saved views of a history file. All methods may be called from any thread and wait for the disk."""

    def __init__(self, file: DatabaseWriter) -> None:
        self._file = file

    def save(self, name: str, query: Mapping[str, str]) -> None:
        """Save a view, replacing any of the same name.

        Raises ConfigError for an empty or too long name, for a query that is too large, and beyond 40 views.
        """
        self.restore(SavedView(checked_name(name, NAME_CHARACTERS), query, datetime.now(UTC)))

    def all(self) -> list[SavedView]:
        """Return all views, in alphabetical order."""
        with self._file.reading() as cursor:
            rows = fetch(cursor.execute("SELECT name, query, saved_at FROM saved_views ORDER BY lower(name), name"))
        decode = msgspec.json.Decoder(dict[str, str]).decode
        return [SavedView(row["name"], decode(row["query"]), row["saved_at"].replace(tzinfo=UTC)) for row in rows]

    def rename(self, name: str, new: str) -> None:
        """Rename a view. Raises ConfigError where the new name is taken or is none, HistoryError where it is gone."""
        checked = checked_name(new, NAME_CHARACTERS)

        def rename(cursor: Cursor) -> None:
            if checked != name and cursor.execute("SELECT 1 FROM saved_views WHERE name = ?", [checked]).fetchall():
                raise ConfigError(f"name = {checked!r}: another saved view has this name")
            change = cursor.execute("UPDATE saved_views SET name = ? WHERE name = ?", [checked, name])
            if not is_changed(change):
                raise HistoryError(f"There is no saved view {name!r}: it was renamed or deleted.")

        self._file.write(rename).result()

    def delete(self, name: str) -> bool:
        """Delete a view; `restore` undoes it. Return False where there is none of this name."""
        return self._file.write(
            lambda cursor: is_changed(cursor.execute("DELETE FROM saved_views WHERE name = ?", [name]))
        ).result()

    def restore(self, view: SavedView) -> None:
        """Save a view as it was, replacing any of the same name; raises ConfigError as `save`."""
        row = {"name": view.name, "saved_at": view.saved_at.replace(tzinfo=None), "query": _written(view.query)}

        def save(cursor: Cursor) -> None:
            others = cursor.execute("SELECT count(*) FROM saved_views WHERE name <> ?", [view.name]).fetchone()
            if others is not None and others[0] >= MOST_VIEWS:
                raise ConfigError(f"There are {MOST_VIEWS} saved views already: delete one first.")
            insert_row(cursor, "saved_views", row, replaces=True)

        self._file.write(save).result()


def _written(query: Mapping[str, str]) -> str:
    if len(query) > MOST_PARTS:
        raise ConfigError(f"query: has {len(query)} parameters; up to {MOST_PARTS} are allowed")
    checked = {
        checked_text("query", name, NAME_CHARACTERS): checked_text(name, text, PART_CHARACTERS)
        for name, text in query.items()
    }
    return msgspec.json.encode(checked).decode()
