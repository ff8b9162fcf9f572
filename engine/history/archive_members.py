"""The members of an archive that was written anywhere, read in pieces and within bounds."""

import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, TypeVar

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from engine.errors import HistoryError
from engine.history.archive_parts import MANIFEST, MEMBERS, SAMPLES, STEPS, VERSION, Manifest

T = TypeVar("T")

MOST_LINE_BYTES = 64 << 20
MOST_BYTES = {MANIFEST: 1 << 20, SAMPLES: 8 << 30, STEPS: 32 << 30}
MOST_LINES_BYTES = 4 << 30
MOST_ROWS = 100_000_000
MOST_GROUP_BYTES = 1 << 30  # what one row group may be when it is unpacked
COPY_BYTES = 1 << 20
ROWS_AT_ONCE = 8_192
"""Of a table: 8,192 steps with 256 candidates are some 20 MB."""

_UNREADABLE = (
    ValueError,
    TypeError,
    OverflowError,
    EOFError,
    OSError,  # Parquet that is cut off or garbled, too
    RuntimeError,  # a zip that is encrypted, JSON that is nested too deep
    zipfile.BadZipFile,
    zlib.error,
    msgspec.MsgspecError,
    pa.ArrowException,
)


@contextmanager
def telling(name: str) -> Iterator[None]:
    """Makes whatever is wrong with an archive a HistoryError that says so."""
    try:
        yield
    except FileNotFoundError as error:
        raise HistoryError(f"{error.filename}: there is no such file") from error
    except _UNREADABLE as error:
        raise HistoryError(
            f"{name} cannot be read as an archive of this workbench: {error}. Nothing of it was taken in; export it "
            "again, with a version that is not newer than this one."
        ) from error


def manifest_of(content: zipfile.ZipFile) -> Manifest:
    """What the archive says of itself; raises ValueError where it is none, or a later one."""
    names = sorted(member.filename for member in content.infolist())
    if names != sorted(MEMBERS):
        raise ValueError(f"it should hold {', '.join(MEMBERS)}, and holds {', '.join(names[:9]) or 'nothing'}")
    for member in content.infolist():
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{member.filename} is compressed in a way that this version does not read")
    with content.open(MANIFEST) as file:
        manifest = msgspec.json.decode(file.read(MOST_BYTES[MANIFEST]), type=Manifest)
    if manifest.version != VERSION:
        raise ValueError(f"it has version {manifest.version}; this one reads version {VERSION}")
    return manifest


def lines_of(content: zipfile.ZipFile, name: str, read: Callable[[bytes], T]) -> Iterator[T]:
    """What the lines of a member hold; raises ValueError with the line for what cannot be read."""
    with content.open(name) as member:
        num_bytes = number = 0
        while line := member.readline(MOST_LINE_BYTES + 1):
            number, num_bytes = number + 1, num_bytes + len(line)
            if len(line) > MOST_LINE_BYTES or num_bytes > MOST_LINES_BYTES:
                raise ValueError(f"{name}, line {number}: it is longer than anything that this version writes")
            try:
                found = read(line)
            except _UNREADABLE as error:
                raise ValueError(f"{name}, line {number}: {error}") from error
            yield found


def tables_of(
    content: zipfile.ZipFile, name: str, types: Mapping[str, pa.DataType], needed: Iterable[str]
) -> Iterator[pa.Table]:
    """The rows of a Parquet member in pieces, in these types; raises ValueError for other columns, and without those
    needed."""
    with tempfile.TemporaryFile() as copy:
        with content.open(name) as member:
            _copy(member, copy, MOST_BYTES[name], name)
        file = pq.ParquetFile(copy)
        _check_size(file.metadata, name)
        _check_columns(file.schema_arrow.names, types, needed, name)
        for batch in file.iter_batches(ROWS_AT_ONCE):
            yield pa.table({each: batch[each].cast(types[each]) for each in batch.schema.names})


def _check_columns(names: list[str], types: Mapping[str, pa.DataType], needed: Iterable[str], member: str) -> None:
    unknown, missing = set(names).difference(types), set(needed).difference(names)
    if unknown or missing or len(set(names)) != len(names):
        told = f"unknown: {', '.join(sorted(unknown)[:5]) or 'none'}; missing: {', '.join(sorted(missing)) or 'none'}"
        raise ValueError(f"{member} has other columns than it should ({told}), or one twice")


def _copy(source: IO[bytes], target: IO[bytes], most: int, name: str) -> None:
    num_bytes = 0
    while piece := source.read(COPY_BYTES):
        num_bytes += len(piece)
        if num_bytes > most:
            raise ValueError(f"{name} has more than {most:,} bytes")
        target.write(piece)


def _check_size(about: pq.FileMetaData, name: str) -> None:
    groups: Iterable[Any] = (about.row_group(number) for number in range(about.num_row_groups))
    if about.num_rows > MOST_ROWS or any(group.total_byte_size > MOST_GROUP_BYTES for group in groups):
        raise ValueError(f"{name} unpacks to more than anything that this version writes")
