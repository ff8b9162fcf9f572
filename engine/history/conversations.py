"""Conversations among the stored trials: the trials that gave the answers of a chat."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from engine.history.database_writer import DatabaseWriter, fetch
from engine.history.trials import as_uuid

Messages = Sequence[Mapping[str, str]]

MOST_FOUND = 1000
_ANCESTORS = """
    WITH RECURSIVE line AS (
        SELECT id, parent FROM trials WHERE id = ?
        UNION
        SELECT trials.id, trials.parent FROM trials JOIN line ON trials.id = line.parent
    )
    SELECT id FROM line"""
_GIVEN = f"""
    SELECT id, messages, text FROM trials
    WHERE deleted_at IS NULL AND (messages, text) IN (SELECT (unnest(?::VARCHAR[]), unnest(?::VARCHAR[])))
    ORDER BY created_at DESC, id DESC LIMIT {MOST_FOUND}"""


class Given(NamedTuple):
    """An answer to look for, or a trial that gave it: the messages before it and its text. id "": not known yet."""

    messages: str
    text: str
    id: str = ""


def given(messages: Messages, text: str, id: str = "") -> Given:
    """Return an answer with its messages as they are stored."""
    return Given(msgspec.json.encode(messages).decode(), text, id)


class Conversations:
    """The conversations of a history file. All methods may be called from any thread."""

    def __init__(self, file: DatabaseWriter) -> None:
        self._file = file

    def ancestors(self, id: str) -> set[str]:
        """Return the ids of a trial, its parent, the parent's parent and so on, as far as they are stored."""
        with self._file.reading() as cursor:
            return {str(row["id"]) for row in fetch(cursor.execute(_ANCESTORS, [as_uuid(id)]))}

    def gave(self, answers: Sequence[Given]) -> list[Given]:
        """Return the trials that gave any of these answers, newest first, at most 1,000."""
        columns = [[one.messages for one in answers], [one.text for one in answers]]
        with self._file.reading() as cursor:
            rows = fetch(cursor.execute(_GIVEN, columns))
        return [Given(**{**row, "id": str(row["id"])}) for row in rows]
