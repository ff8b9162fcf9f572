"""Members of an archive from an untrusted source, read in pieces and within bounds."""

import errno
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa

from engine.errors import HistoryError
from engine.files import check_room
from engine.history.archives.parts import MANIFEST, MEMBERS, SAMPLES, STEPS, VERSION, Manifest
from engine.history.parquet_tables import ParquetTable, check_columns
from engine.specs import MAX_RECORDED

T = TypeVar("T")

MOST_LINE_BYTES = 64 << 20
MOST_BYTES = {MANIFEST: 1 << 20, SAMPLES: 8 << 30, STEPS: 32 << 30}
MOST_LINES_BYTES = 4 << 30
MOST_RATIO = 250
"""Maximum ratio of a member's unpacked to its packed size. Exports deflate lines at zlib's level 1, which packs endless
repetition of one letter to a 229th; Parquet compresses itself, so that a zip packs it to no less than a third."""
MOST_ROWS = 100_000_000
COPY_BYTES = 1 << 20

_UNREADABLE = (
    ValueError,
    TypeError,
    OverflowError,
    EOFError,
    OSError,  # also truncated or corrupt Parquet
    RuntimeError,  # a zip that is encrypted, JSON that is nested too deep
    zipfile.BadZipFile,
    zlib.error,
    msgspec.MsgspecError,
    pa.ArrowException,
)


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def telling(name: str) -> Iterator[None]:
    """Turn any failure to read an archive into a HistoryError that gives the reason."""
    try:
        yield
    except FileNotFoundError as error:
        raise HistoryError(f"{error.filename}: there is no such file") from error
    except _UNREADABLE as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise HistoryError(
                f"{name}: not enough disk space to import it ({error.strerror}). Nothing was imported; free some space."
            ) from error
        raise HistoryError(
            f"{name} cannot be read as a Logitbench archive: {error}. Nothing was imported; export it again with a "
            "version that is not newer than this one."
        ) from error


def manifest_of(content: zipfile.ZipFile) -> Manifest:
    """Return the manifest; raises ValueError for something other than an archive, and for another version of it."""
    names = sorted(member.filename for member in content.infolist())
    if names != sorted(MEMBERS):
        raise ValueError(f"it should contain {', '.join(MEMBERS)}, but contains {', '.join(names[:9]) or 'nothing'}")
    for member in content.infolist():
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{member.filename} uses a compression method that this version does not support")
        _check_size(member, content.start_dir)
    with content.open(MANIFEST) as file:
        manifest = msgspec.json.decode(file.read(), type=Manifest)
    if manifest.version != VERSION:
        raise ValueError(f"it has archive version {manifest.version}; this Logitbench reads version {VERSION}")
    return manifest


def _check_size(member: zipfile.ZipInfo, end: int) -> None:
    """Raise ValueError for a member that unpacks to too much, by the sizes in the directory, which starts at `end`.

    zipfile reads no more of a member than these sizes, so that a wrong one cannot raise the limit.
    """
    most = MOST_BYTES.get(member.filename, MOST_LINES_BYTES)
    unpacks = f"{member.filename} unpacks to {member.file_size:,} bytes"
    if member.file_size > most:
        raise ValueError(f"{unpacks}; the limit is {most:,}")
    if member.header_offset + member.compress_size > end:
        raise ValueError(f"{member.filename} does not fit into the file with its {member.compress_size:,} packed bytes")
    if member.file_size > member.compress_size * MOST_RATIO:
        raise ValueError(f"{unpacks}, more than {MOST_RATIO} times its packed size, which no export reaches")


def lines_of(content: zipfile.ZipFile, name: str, read: Callable[[bytes], T]) -> Iterator[T]:
    """Yield each line of a member as parsed by `read`; raises ValueError with the line number for an unreadable one."""
    with content.open(name) as member:
        number = 0
        while line := member.readline(MOST_LINE_BYTES + 1):
            number += 1
            if len(line) > MOST_LINE_BYTES:
                raise ValueError(f"{name}, line {number}: it is larger than anything that this version writes")
            try:
                found = read(line)
            except _UNREADABLE as error:
                raise ValueError(f"{name}, line {number}: {error}") from error
            yield found


def tables_of(
    content: zipfile.ZipFile, name: str, folder: Path, types: Mapping[str, pa.DataType], needed: Iterable[str]
) -> Iterator[pa.Table]:
    """Yield the rows of a Parquet member, unpacked to an unnamed file in `folder`, in pieces, cast to `types`.

    Raises ValueError for unknown columns, and where a needed one is missing; OSError where the disk has no room.
    """
    check_room(folder, content.getinfo(name).file_size)
    with tempfile.TemporaryFile(dir=folder) as copy:
        with content.open(name) as member:
            shutil.copyfileobj(member, copy, COPY_BYTES)
        copy.flush()
        try:
            table = ParquetTable(copy, most_rows=MOST_ROWS, longest_list=MAX_RECORDED)
            check_columns(table.names, types, needed)
            yield from table.pieces({each: types[each] for each in table.names})
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
