"""Archive export: runs and trials as a zip of JSON lines and Parquet, written in pieces (format: docs/formats.md)."""

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
import pyarrow.parquet as pq

from engine.errors import HistoryError
from engine.files import writing_whole
from engine.history import columns, comparisons, run_columns
from engine.history.archives.intake import Imported, import_archive
from engine.history.archives.parts import (
    COMPARISONS,
    FORMAT,
    IDS_AT_ONCE,
    MANIFEST,
    MARKS,
    RUNS,
    SAMPLES,
    STEPS,
    TOKENIZERS,
    TRIALS,
    VERSION,
    ArchivedTrial,
    Manifest,
    Mark,
    comparison_line,
    no_steps,
    stem,
)
from engine.history.database_writer import fetch
from engine.history.read_cursor import ReadCursor
from engine.history.run_file import run_to_json
from engine.history.store import History
from engine.history.trial_file import TokenizerPart
from engine.history.trials import as_uuid
from engine.samples import no_samples

__all__ = ["Imported", "export_history", "import_archive"]

SAMPLES_AT_ONCE, STEPS_AT_ONCE = 50_000, 8_192  # rows per row group: about 15 MB each


def export_history(
    history: History,
    target: Path | BinaryIO,
    *,
    run_ids: Iterable[str] | None = None,
    trial_ids: Iterable[str] | None = None,
) -> Manifest:
    """Write an archive of these runs and trials, or of everything where neither is given; return its manifest.

    A path is written whole or not at all. Raises HistoryError for an unknown id, and where `target` cannot be written.
    """
    is_whole = run_ids is None and trial_ids is None
    with history.file.reading(is_large=True) as cursor:
        runs = _existing(cursor, "run", None if is_whole else run_ids or ())
        trials = _existing(cursor, "trial", None if is_whole else trial_ids or ())
        try:
            if not isinstance(target, Path):
                return _write(cursor, target, runs, trials, is_whole=is_whole)
            with writing_whole(target) as file:
                return _write(cursor, file, runs, trials, is_whole=is_whole)
        except OSError as error:
            raise HistoryError(f"The archive could not be written: {error}. Choose another location.") from error


def _in_pieces(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the ids in pieces of IDS_AT_ONCE."""
    return (ids[start : start + IDS_AT_ONCE] for start in range(0, len(ids), IDS_AT_ONCE))


def _existing(cursor: ReadCursor, kind: Literal["run", "trial"], ids: Iterable[str] | None) -> list[str]:
    """Return the ids of one kind, oldest first: all where `ids` is None, else those given.

    Raises HistoryError for an id that does not exist or is deleted.
    """
    found = cursor.execute(f"SELECT id FROM {kind}s WHERE deleted_at IS NULL ORDER BY created_at, id").fetchall()
    here = [str(id) for (id,) in found]
    if ids is None:
        return here
    wanted = {str(as_uuid(id) or id) for id in ids}
    missing = wanted.difference(here)
    if missing:
        raise HistoryError(f"There is no {kind} {min(missing)!r} in this history: it was deleted or never saved.")
    return [id for id in here if id in wanted]


def _write(cursor: ReadCursor, file: BinaryIO, runs: list[str], trials: list[str], *, is_whole: bool) -> Manifest:
    lines = {
        RUNS: _run_lines(cursor, runs),
        TRIALS: _trial_lines(cursor, trials),
        TOKENIZERS: _tokenizer_lines(cursor, trials),
        MARKS: _mark_lines(cursor, None if is_whole else [*runs, *trials]),
        COMPARISONS: _comparison_lines(cursor, is_whole=is_whole),
    }
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        counts = {stem(name): _write_lines(archive, name, found) for name, found in lines.items()}
        samples = "SELECT * REPLACE (run_id::VARCHAR AS run_id) FROM samples WHERE run_id IN (SELECT unnest(?::UUID[]))"
        steps = (
            "SELECT * REPLACE (trial_id::VARCHAR AS trial_id) FROM steps WHERE trial_id IN (SELECT unnest(?::UUID[]))"
        )
        counts[stem(SAMPLES)] = _write_table(archive, SAMPLES, cursor, samples, runs, SAMPLES_AT_ONCE)
        counts[stem(STEPS)] = _write_table(archive, STEPS, cursor, steps, trials, STEPS_AT_ONCE)
        manifest = Manifest(format=FORMAT, version=VERSION, created_at=datetime.now(UTC), counts=counts)
        archive.writestr(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    return manifest


def _write_lines(archive: zipfile.ZipFile, name: str, lines: Iterable[bytes]) -> int:
    num_lines = 0
    with archive.open(name, "w", force_zip64=True) as member:
        for line in lines:
            member.write(line + b"\n")
            num_lines += 1
    return num_lines


def _write_table(
    archive: zipfile.ZipFile, name: str, cursor: ReadCursor, query: str, ids: list[str], rows_at_once: int
) -> int:
    """Write rows as a Parquet member and return their number.

    Parquet compresses internally; in the zip it is stored uncompressed, so that other programs can read it in place.
    """
    num_rows = 0
    with (
        cursor.batches(query, [ids], rows_at_once) as (schema, batches),
        archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member,
        pq.ParquetWriter(member, schema, compression="zstd") as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
            num_rows += len(batch)
    return num_rows


def _run_lines(cursor: ReadCursor, ids: Sequence[str]) -> Iterator[bytes]:
    for piece in _in_pieces(ids):
        cells: dict[Any, list[dict[str, Any]]] = {}
        for cell in _rows_of(cursor, "SELECT * FROM cells WHERE run_id IN", piece, "ORDER BY number"):
            cells.setdefault(cell["run_id"], []).append(cell)
        for row in _rows_of(cursor, "SELECT * FROM runs WHERE id IN", piece, "ORDER BY created_at, id"):
            mine = tuple(map(run_columns.cell_of, cells.get(row["id"], ())))
            yield run_to_json(run_columns.run_of(row, mine, no_samples())).encode()


def _trial_lines(cursor: ReadCursor, ids: Sequence[str]) -> Iterator[bytes]:
    for piece in _in_pieces(ids):
        for row in _rows_of(cursor, "SELECT * FROM trials WHERE id IN", piece, "ORDER BY created_at, id"):
            trial = columns.trial_of(row, no_steps(), no_steps())
            further = {name: row[name] for name in ("tokenizer", "mean_surprise_bits")}
            yield msgspec.json.encode(ArchivedTrial.of(trial, **further))


def _tokenizer_lines(cursor: ReadCursor, trials: Sequence[str]) -> Iterator[bytes]:
    query = "SELECT DISTINCT tokenizer FROM trials WHERE id IN (SELECT unnest(?::UUID[])) ORDER BY tokenizer"
    for (hash,) in cursor.execute(query, [trials]).fetchall():
        (row,) = fetch(cursor.execute("SELECT * FROM tokenizers WHERE hash = ?", [hash]))
        yield msgspec.json.encode(TokenizerPart.of(columns.vocabulary_of(row)))


def _mark_lines(cursor: ReadCursor, ids: list[str] | None) -> Iterator[bytes]:
    query = "SELECT * FROM marks WHERE ? OR id IN (SELECT unnest(?::UUID[])) ORDER BY kind, id"
    for row in fetch(cursor.execute(query, [ids is None, ids or []])):
        yield msgspec.json.encode(Mark(**{**row, "tags": tuple(row["tags"])}))


def _comparison_lines(cursor: ReadCursor, *, is_whole: bool) -> Iterator[bytes]:
    """Yield the comparisons, which are exported only with the whole history, as only that has all their trials."""
    query = "SELECT * FROM comparisons WHERE ? AND deleted_at IS NULL ORDER BY created_at, id"
    for row in fetch(cursor.execute(query, [is_whole])):
        yield comparison_line(comparisons.record_of(row))


def _rows_of(cursor: ReadCursor, query: str, ids: Sequence[str], order: str) -> list[dict[str, Any]]:
    return fetch(cursor.execute(f"{query} (SELECT unnest(?::UUID[])) {order}", [list(ids)]))
