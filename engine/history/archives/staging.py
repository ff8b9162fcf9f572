"""Staging folder: the content of an untrusted file, typed and bounded, ready to be inserted.

The process that reads untrusted files writes it. The process that owns the history reads it back, as msgpack frames of
known types and Arrow batches of known columns, and never reads the file itself.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

import msgspec
import pyarrow as pa

from engine.files import check_room
from engine.history import columns, run_columns
from engine.history.archives.parts import (
    RUNS,
    SAMPLES,
    STEPS,
    TOKENIZERS,
    TRIALS,
    ArchivedTrial,
)
from engine.history.run_file import RUN_SAMPLES, RunPart
from engine.history.step_checks import STEP_COLUMNS
from engine.history.trial_file import TokenizerPart
from engine.history.trials import TrialRecord
from engine.runs import RunRecord

T = TypeVar("T", bound=msgspec.Struct)

LONGEST_FRAME = 64 << 20
MOST_BYTES_AT_ONCE = 16 << 20
COLUMNS: Mapping[str, Mapping[str, pa.DataType]] = {SAMPLES: RUN_SAMPLES, STEPS: STEP_COLUMNS}
_LENGTH = 4


class StagingWriter:
    """Writer of a staging folder: stores parts and tables under the names of the archive members they belong to.

    Raises OSError where the disk has no room.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._open = folder, ExitStack()
        self._files: dict[str, BinaryIO] = {}
        self._tables: dict[str, Any] = {}
        self.run_ids: list[str] = []
        self.trial_ids: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, member: str, part: msgspec.Struct) -> None:
        """Append a part."""
        frame = msgspec.msgpack.encode(part)
        check_room(self.folder, len(frame))
        if member not in self._files:
            self._files[member] = self._open.enter_context((self.folder / member).open("wb"))
        self._files[member].write(len(frame).to_bytes(_LENGTH, "little") + frame)

    def add_rows(self, member: str, rows: pa.Table) -> None:
        """Append rows of samples or steps; missing columns are filled with null."""
        schema = pa.schema(COLUMNS[member])
        if member not in self._tables:
            self._tables[member] = self._open.enter_context(pa.ipc.new_stream(str(self.folder / member), schema))
        whole = {
            name: rows[name].cast(type) if name in rows.column_names else pa.nulls(len(rows), type)
            for name, type in COLUMNS[member].items()
        }
        table = pa.table(whole, schema)
        check_room(self.folder, table.nbytes)
        self._tables[member].write_table(table)

    def add_run(self, run: RunRecord) -> None:
        """Append a run with its samples."""
        self.run_ids.append(run.id)
        self.add(RUNS, RunPart.of(run))
        self.add_rows(SAMPLES, run_columns.sample_rows(run.id, run.samples))

    def add_trial(self, trial: TrialRecord) -> None:
        """Append a trial with its tokenizer and its steps."""
        self.trial_ids.append(trial.id)
        vocabulary = trial.completion.steps.vocabulary
        further = {"tokenizer": vocabulary.hash, "mean_surprise_bits": trial.mean_surprise_bits}
        self.add(TOKENIZERS, TokenizerPart.of(vocabulary))
        self.add(TRIALS, ArchivedTrial.of(trial, **further))
        for rows in columns.step_rows(trial):
            self.add_rows(STEPS, rows)


class Staging:
    """Reader of a staging folder; raises ValueError, or msgspec's and pyarrow's errors, for invalid content."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def pieces(self, member: str, kind: type[T], most: int) -> Iterator[list[T]]:
        """Yield the parts of a member in lists of at most `most` parts, and of about MOST_BYTES_AT_ONCE bytes."""
        decode = msgspec.msgpack.Decoder(kind).decode
        piece: list[T] = []
        num_bytes = 0
        for frame in self._frames(member):
            piece.append(decode(frame))
            num_bytes += len(frame)
            if len(piece) == most or num_bytes > MOST_BYTES_AT_ONCE:
                yield piece
                piece, num_bytes = [], 0
        if piece:
            yield piece

    def tables(self, member: str) -> Iterator[pa.Table]:
        """Yield the rows of a member in pieces."""
        path = self._folder / member
        if not path.exists():
            return
        with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as reader:
            if reader.schema != pa.schema(COLUMNS[member]):
                raise ValueError(f"{member} has the wrong columns")
            for batch in reader:
                batch.validate(full=True)
                yield pa.Table.from_batches([batch])

    def _frames(self, member: str) -> Iterator[bytes]:
        path = self._folder / member
        if not path.exists():
            return
        with path.open("rb") as file:
            while start := file.read(_LENGTH):
                size = int.from_bytes(start, "little")
                frame = file.read(size) if size <= LONGEST_FRAME else b""
                if len(frame) < size:
                    raise ValueError(f"{member} is truncated")
                yield frame
