"""Reports: chosen runs, trends and trials with text between them, under a name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import msgspec

from engine.errors import ConfigError, HistoryError
from engine.history.checks import checked_name, checked_text, stored_time
from engine.history.database_writer import Cursor, DatabaseWriter, fetch, insert_row, is_changed
from engine.history.trials import as_uuid
from engine.ids import new_id
from engine.samples import METRICS_BY_NAME
from engine.validation import Spec

BlockKind = Literal["text", "run", "trend", "trial"]
KINDS: tuple[BlockKind, ...] = get_args(BlockKind)

NAME_CHARACTERS, TEXT_CHARACTERS = 120, 20_000
MOST_BLOCKS, MOST_REPORTS = 50, 500
_CELL_DIGITS = 9


@dataclass(frozen=True, kw_only=True)
class Block(Spec):
    """A part of a report. Raises ConfigError naming the invalid field.

    kind "text" has `text`, whose paragraphs are separated by empty lines; a line that begins with "# " is a heading.
    "run" and "trial" have the id in `of`, "trend" the run's id and the configuration's number, such as "0199….3", and
    the `metric`.
    """

    kind: BlockKind
    of: str = ""
    metric: str = ""
    text: str = ""

    def __post_init__(self) -> None:
        self._one_of("kind", KINDS)
        checked_text("text", self.text, TEXT_CHARACTERS)
        if self.kind == "text":
            return
        id, _, number = self.of.partition(".") if isinstance(self.of, str) else ("", "", "")
        is_cell = number.isdecimal() and len(number) <= _CELL_DIGITS
        if as_uuid(id) is None or is_cell != (self.kind == "trend"):
            raise ConfigError(f"of = {str(self.of)[:60]!r}: must name a {self.kind}")
        if self.kind == "trend" and self.metric not in METRICS_BY_NAME:
            raise ConfigError(f"metric = {str(self.metric)[:60]!r}: must be one of {', '.join(METRICS_BY_NAME)}")


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report. id: a UUIDv7 as text; created_at and changed_at are in UTC."""

    id: str
    name: str
    blocks: tuple[Block, ...]
    created_at: datetime
    changed_at: datetime


class Reports:
    """The reports of a history file. All methods may be called from any thread and wait for the disk."""

    def __init__(self, file: DatabaseWriter) -> None:
        self._file = file

    def create(self, name: str, blocks: Sequence[Block] = ()) -> Report:
        """Store a new report; raises ConfigError for a name or blocks that cannot be kept, and beyond 500 reports."""
        now = datetime.now(UTC)
        report = Report(id=new_id(), name=name, blocks=tuple(blocks), created_at=now, changed_at=now)
        row = _row(report)

        def create(cursor: Cursor) -> None:
            found = cursor.execute("SELECT count(*) FROM reports WHERE deleted_at IS NULL").fetchone()
            if found is not None and found[0] >= MOST_REPORTS:
                raise ConfigError(f"There are {MOST_REPORTS} reports already: delete one first.")
            insert_row(cursor, "reports", row)

        self._file.write(create).result()
        return replace(report, name=row["name"])

    def rename(self, id: str, name: str) -> None:
        """Rename a report; raises ConfigError for a name that cannot be kept, HistoryError where it does not exist."""
        values = [checked_name(name, NAME_CHARACTERS), stored_time(datetime.now(UTC)), as_uuid(id)]
        statement = "UPDATE reports SET name = ?, changed_at = ? WHERE id = ? AND deleted_at IS NULL"
        if not self._file.write(lambda cursor: is_changed(cursor.execute(statement, values))).result():
            raise _gone(id)

    def add(self, id: str, blocks: Sequence[Block]) -> None:
        """Append blocks to a report; raises ConfigError where it would have too many, HistoryError where it is gone."""
        self._edit(id, lambda now: [*now, *blocks])

    def put(self, id: str, number: int, was: Block, block: Block) -> None:
        """Replace a block; raises ConfigError unless the block at this place is still `was`, else as `add`."""
        self._edit(id, lambda now: [*_before(now, number, was), block, *now[number + 1 :]])

    def remove(self, id: str, number: int, was: Block) -> None:
        """Remove a block; raises errors as `put`."""
        self._edit(id, lambda now: [*_before(now, number, was), *now[number + 1 :]])

    def move(self, id: str, number: int, was: Block, to: int) -> None:
        """Move a block to another place, the last if there is none; raises errors as `put`."""

        def moved(now: list[Block]) -> list[Block]:
            rest = [*_before(now, number, was), *now[number + 1 :]]
            return [*rest[:to], was, *rest[to:]]

        self._edit(id, moved)

    def report(self, id: str) -> Report | None:
        """Return a report; None where it does not exist or is deleted."""
        rows = self._fetch("SELECT * FROM reports WHERE id = ? AND deleted_at IS NULL", as_uuid(id))
        return _report_of(rows[0]) if rows else None

    def all(self) -> list[Report]:
        """Return all reports, the last changed first."""
        rows = self._fetch("SELECT * FROM reports WHERE deleted_at IS NULL ORDER BY changed_at DESC, id DESC")
        return [_report_of(row) for row in rows]

    def delete(self, id: str) -> bool:
        """Hide a report until `restore`, or until the next open purges it; return False where it does not exist."""
        return self._set_deleted(id, stored_time(datetime.now(UTC)))

    def restore(self, id: str) -> bool:
        """Undo `delete`; return False where the report no longer exists."""
        return self._set_deleted(id, None)

    def _set_deleted(self, id: str, when: datetime | None) -> bool:
        change = "UPDATE reports SET deleted_at = ? WHERE id = ?"
        return self._file.write(lambda cursor: is_changed(cursor.execute(change, [when, as_uuid(id)]))).result()

    def _edit(self, id: str, change: Callable[[list[Block]], list[Block]]) -> None:
        """Replace the blocks of a report by what `change` makes of the present ones, so that nothing is overwritten."""

        def edit(cursor: Cursor) -> None:
            rows = cursor.execute("SELECT blocks FROM reports WHERE id = ? AND deleted_at IS NULL", [as_uuid(id)])
            found = rows.fetchone()
            if found is None:
                raise _gone(id)
            blocks = _written(change(_read(found[0])))
            now = stored_time(datetime.now(UTC))
            cursor.execute("UPDATE reports SET blocks = ?, changed_at = ? WHERE id = ?", [blocks, now, as_uuid(id)])

        self._file.write(edit).result()

    def _fetch(self, query: str, *values: object) -> list[dict[str, Any]]:
        with self._file.reading() as cursor:
            return fetch(cursor.execute(query, list(values)))


def purge(cursor: Cursor) -> int:
    """Remove deleted reports; return their number."""
    return len(cursor.execute("DELETE FROM reports WHERE deleted_at IS NOT NULL RETURNING id").fetchall())


def _before(now: list[Block], number: int, was: Block) -> list[Block]:
    """Return the blocks before the one at `number`; raises ConfigError unless that is still `was`."""
    if now[number : number + 1] != [was]:
        raise ConfigError(f"Part {number + 1} was changed elsewhere meanwhile: this was not saved. Do it again.")
    return now[:number]


def _gone(id: str) -> HistoryError:
    return HistoryError(f"There is no report {id[:60]!r}: it was deleted or never saved.")


def _row(report: Report) -> dict[str, Any]:
    return {
        "id": report.id,
        "created_at": stored_time(report.created_at),
        "changed_at": stored_time(report.changed_at),
        "name": checked_name(report.name, NAME_CHARACTERS),
        "blocks": _written(report.blocks),
    }


def _written(blocks: Sequence[Block]) -> str:
    if len(blocks) > MOST_BLOCKS:
        raise ConfigError(f"blocks: there are {len(blocks)}; a report has up to {MOST_BLOCKS}")
    return msgspec.json.encode([block.to_dict() for block in blocks]).decode()


def _read(blocks: str) -> list[Block]:
    return [Block.from_dict(block) for block in msgspec.json.decode(blocks)]


def _report_of(row: dict[str, Any]) -> Report:
    return Report(
        id=str(row["id"]),
        name=row["name"],
        blocks=tuple(_read(row["blocks"])),
        created_at=row["created_at"].replace(tzinfo=UTC),
        changed_at=row["changed_at"].replace(tzinfo=UTC),
    )
