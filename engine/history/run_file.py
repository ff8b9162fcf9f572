"""Run file: a run as a zip of run.json and samples.csv, which people can open too.

Files may come from any source: sizes, names and types are checked before any content is used.
"""

import io
import uuid
import zipfile
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from engine.errors import HistoryError
from engine.files import read_regular, write_whole
from engine.history import run_schema
from engine.history.checks import LAST_YEAR, checked_time
from engine.history.run_columns import facts_of, sample_table, samples_of, to_json
from engine.runs import CellRecord, CellStatus, RunRecord, RunStatus
from engine.samples import FLAGS, METRICS_BY_NAME, SAMPLE, SYSTEM_NOISE, Samples

FORMAT = 1
RUN, SAMPLES = "run.json", "samples.csv"
MOST_BYTES = {RUN: 32 << 20, SAMPLES: 256 << 20}
MOST_SAMPLES = 1_000_000
MOST_CELLS = 10_000
HEADER_BYTES = 1 << 16
LATEST_S = datetime(LAST_YEAR, 12, 31, tzinfo=UTC).timestamp()

_TYPES = {"i4": pa.int32(), "f8": pa.float64(), "i1": pa.string(), "b1": pa.bool_()}
COLUMNS = {name: _TYPES[SAMPLE[name].str[1:]] for name in SAMPLE.names or ()}
RUN_SAMPLES = {**COLUMNS, "run_id": pa.string()}
ALWAYS = [name for name in COLUMNS if name not in METRICS_BY_NAME and name not in SYSTEM_NOISE]

_UNREADABLE = (
    ValueError,
    OverflowError,
    EOFError,
    RuntimeError,  # a zip that is encrypted, JSON that is nested too deep
    zipfile.BadZipFile,
    zlib.error,
    msgspec.MsgspecError,
    pa.ArrowException,
)

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
Word = Annotated[str, msgspec.Meta(max_length=1000)]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of the parts of run.json."""


class _Cell(_Part, frozen=True):
    number: Count
    label: run_schema.Text
    settings: dict[str, Any]
    status: CellStatus
    reason: run_schema.Text
    facts: dict[str, float | None]

    def read(self) -> CellRecord:
        run_schema.check("settings", self.settings)
        run_schema.check("facts", self.facts)
        return CellRecord(**{**msgspec.structs.asdict(self), "facts": facts_of(self.facts)})


class RunPart(_Part, frozen=True):
    """Run without its samples, the content of run.json."""

    format: int
    id: uuid.UUID
    created_at: datetime
    name: Word
    question: Word
    status: RunStatus
    plan: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    outcome: dict[str, Any]
    origin: Word
    cells: Annotated[tuple[_Cell, ...], msgspec.Meta(max_length=MOST_CELLS)]

    @classmethod
    def of(cls, run: RunRecord) -> Self:
        """Return the part of a run, whose values must have the types of `run_schema`."""
        return msgspec.json.decode(run_to_json(run), type=cls)

    def read(self, samples: Samples) -> RunRecord:
        """Return the run with these samples; raises ValueError for another format and for invalid values."""
        if self.format != FORMAT:
            raise ValueError(f"it has format {self.format}; this version reads format {FORMAT}")
        for part in run_schema.OF_RUN:
            run_schema.check(part, getattr(self, part))
        numbers = [cell.number for cell in self.cells]
        if len(set(numbers)) != len(numbers):
            raise ValueError("two configurations have the same number")
        is_lost = ~np.isin(samples["cell"], numbers)
        if is_lost.any():
            raise ValueError(f"{_line(int(is_lost.argmax()))}: there is no such configuration")
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name != "format"}
        cells = tuple(cell.read() for cell in self.cells)
        changed = {"id": str(self.id), "created_at": checked_time(self.created_at), "cells": cells}
        return RunRecord(**{**values, **changed, "samples": samples})


def run_to_json(run: RunRecord) -> str:
    """Return a run without its samples as JSON on one line."""
    values = {name: value for name, value in vars(run).items() if name != "samples"}
    return to_json({"format": FORMAT, **values, "cells": [vars(cell) for cell in run.cells]})


def run_from_json(content: bytes, samples: Samples) -> RunRecord:
    """Return the run that `run_to_json` wrote, with these samples; raises ValueError or msgspec.MsgspecError."""
    return msgspec.json.decode(content, type=RunPart).read(samples)


def run_bytes(run: RunRecord) -> bytes:
    """Return the content of a run file."""
    plain = run_to_json(run)
    table = io.BytesIO()
    csv.write_csv(sample_table(run.samples), table)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(RUN, msgspec.json.format(plain, indent=1))
        archive.writestr(SAMPLES, table.getvalue())
    return content.getvalue()


def run_from_bytes(content: bytes, name: str = "The file") -> RunRecord:
    """Return the run that `run_bytes` wrote; raises HistoryError with the reason where it cannot be read."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            plain, table = _members(archive)
        return run_from_json(plain, _samples(table))
    except _UNREADABLE as error:
        raise HistoryError(
            f"{name} cannot be read as a Logitbench run: {error}. Nothing was imported; export the run again with a "
            "version that is not newer than this one."
        ) from error


def write_run(path: Path, run: RunRecord) -> None:
    """Write a run file, whole or not at all; raises HistoryError where `path` cannot be written."""
    try:
        write_whole(path, run_bytes(run))
    except OSError as error:
        raise HistoryError(f"The run could not be written to {path}: {error}. Choose another location.") from error


def read_run(path: Path) -> RunRecord:
    """Read a file of `write_run`; raises HistoryError with the reason where it cannot be read."""
    try:
        if path.stat().st_size > sum(MOST_BYTES.values()):
            raise HistoryError(f"{path} is larger than any run file. Nothing was imported.")
        content = read_regular(path)
    except OSError as error:
        raise HistoryError(f"{path} could not be read: {error}. Check that it exists and is readable.") from error
    return run_from_bytes(content, str(path))


def _members(archive: zipfile.ZipFile) -> tuple[bytes, bytes]:
    """Return run.json and samples.csv; raises ValueError where the archive does not hold exactly these two."""
    names = sorted(member.filename for member in archive.infolist())
    if names != [RUN, SAMPLES]:
        raise ValueError(f"it should contain {RUN} and {SAMPLES}, but contains {', '.join(names[:5]) or 'nothing'}")
    return _member(archive, RUN), _member(archive, SAMPLES)


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} uses a compression method that this version does not support")
    with archive.open(name) as file:
        content = file.read(MOST_BYTES[name] + 1)
    if len(content) > MOST_BYTES[name]:
        raise ValueError(f"{name} has more than {MOST_BYTES[name]:,} bytes")
    return content


def _samples(content: bytes) -> Samples:
    """Return the samples of a CSV table; a metric unknown to its writer has no column and becomes NaN."""
    if content.count(b"\n") > MOST_SAMPLES + 1:
        raise ValueError(f"{SAMPLES} has more than {MOST_SAMPLES:,} lines")
    _check_columns(content[:HEADER_BYTES].split(b"\n", 1)[0].decode())
    table = csv.read_csv(
        pa.BufferReader(content),
        csv.ReadOptions(use_threads=False),  # with several threads, errors do not give the line
        csv.ParseOptions(ignore_empty_lines=False),
        csv.ConvertOptions(column_types=COLUMNS, null_values=[""]),
    )
    samples = checked_samples(table, _line)
    is_repeated = _is_repeated(samples["position"])
    if is_repeated.any():
        raise ValueError(f"{_line(int(is_repeated.argmax()))}: another sample has this position")
    return samples


def checked_samples(table: pa.Table, where: Callable[[int], str]) -> Samples:
    """Return the samples of a table with the types of COLUMNS; raises ValueError with `where` of the first bad row."""

    def refuse(is_wrong: npt.NDArray[np.bool_], reason: str) -> None:
        if is_wrong.any():
            raise ValueError(f"{where(int(is_wrong.argmax()))}: {reason}")

    for name in ALWAYS:
        refuse(table[name].is_null(nan_is_null=True).to_numpy(), f"{name} is missing")
    refuse(~pc.is_in(table["flag"], pa.array(FLAGS)).to_numpy(), f"the flag must be one of {', '.join(FLAGS)}")
    samples = samples_of(table)
    for name in COLUMNS:
        if samples.dtype[name].kind == "f":
            refuse(np.isinf(samples[name]), f"{name} is infinite")
    for name in ("cell", "round", "position", "started_at", "duration_s"):
        refuse(~(samples[name] >= 0), f"{name} is less than 0")
    refuse(~(samples["started_at"] <= LATEST_S), "started_at is after the year 9999")
    return samples


def _line(row: int) -> str:
    """Return the position of a sample in the CSV as text: lines count from 1, and the first one is the header."""
    return f"{SAMPLES}, line {row + 2}"


def _check_columns(header: str) -> None:
    names = header.strip().replace('"', "").split(",")
    unknown = [name for name in names if name not in COLUMNS]
    missing = [name for name in ALWAYS if name not in names]
    if unknown or missing or len(set(names)) != len(names):
        wrong = f"unknown: {', '.join(unknown[:5]) or 'none'}; missing: {', '.join(missing) or 'none'}"
        raise ValueError(f"{SAMPLES} has the wrong columns ({wrong}) or a duplicate")


def _is_repeated(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    _, firsts = np.unique(values, return_index=True)
    is_repeated = np.ones(len(values), np.bool_)
    is_repeated[firsts] = False
    return is_repeated
