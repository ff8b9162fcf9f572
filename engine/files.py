"""File helpers: checks that paths are UTF-8, reads regular files only, and writes files atomically."""

import errno
import fcntl
import glob
import os
import secrets
import shutil
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, TypeVar, cast

import msgspec

from engine.errors import ConfigError, EngineError

MOST_BYTES = 1 << 30
"""Bytes of the largest file that is read into memory."""

_UNFINISHED = ".unfinished"
_LEAST_READ = 1 << 16

T = TypeVar("T")

SPARE_BYTES = 64 << 20
"""Bytes that large files leave free on their disk."""


def check_utf8(path: Path, error: type[EngineError]) -> None:
    """Raise `error` for a path that is not UTF-8: messages between processes and databases cannot hold it.

    Also where this Python decodes names in another encoding, as with LC_ALL=C and PYTHONUTF8=0.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        encoded = os.fsencode(path)
        shown = encoded.decode("utf-8", "backslashreplace")
        if encoded == shown.encode():
            ours = sys.getfilesystemencoding()
            raise error(f"{shown}: Python reads names of files as {ours} here; start it with PYTHONUTF8=1") from None
        raise error(f"{shown}: the name is not valid UTF-8; rename the file or its folder") from None


def check_database_path(path: Path, error: type[EngineError]) -> None:
    r"""Raise `error` for a path that DuckDB cannot use: it takes what follows ? for options, and \ for /."""
    unusable = next((character for character in str(path) if character in "?\\"), None)
    if unusable is not None:
        raise error(
            f"The history cannot be {path}: DuckDB cannot use a path with {unusable} in it. Set LOGITBENCH_HOME or "
            "LOGITBENCH_HISTORY to a path without it."
        )


def num_distinguishing(paths: Sequence[Path]) -> list[int]:
    """Return for each path the fewest of its last parts that no other path ends in, else the number of all."""
    parts = [path.parts for path in paths]
    times = Counter(own[-num:] for own in parts for num in range(1, len(own) + 1))
    return [next((num for num in range(1, len(own)) if times[own[-num:]] == 1), len(own)) for own in parts]


def expanded_path(name: str | Path) -> Path:
    """Return the path that a person or a file names, with ~ expanded.

    Raises ConfigError for a name that cannot be a path here: it has a NUL character, a surrogate or an unknown
    home.
    """
    try:
        if b"\0" in os.fsencode(name):
            raise ValueError("it has a NUL character")
        return Path(name).expanduser()
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"{str(name)[:200]!r}: is not a valid path ({error})") from None


def named_path(name: str | Path) -> Path:
    """Return the path of `expanded_path`, absolute and with links resolved; raises ConfigError for a loop of links."""
    try:
        return expanded_path(name).resolve()
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"{str(name)[:200]!r}: is not a valid path ({error})") from None


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; raises OSError as `open` does, and for pipes and devices (possibly endless)."""
    return open(path, "rb", opener=_regular)


def read_regular(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file; raises OSError as `open_regular` does, and for more than `most_bytes`."""
    with open_regular(path) as file:
        # read(n) of a buffered file allocates n bytes at once, so n follows the file's size
        pieces, left = [], most_bytes + 1
        while left and (piece := file.read(min(left, max(os.fstat(file.fileno()).st_size, _LEAST_READ)))):
            pieces.append(piece)
            left -= len(piece)
    if not left:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))
    return b"".join(pieces)


def decoded_json(content: bytes | str, kind: type[T]) -> T:
    """Decode JSON that another program may have written. Raises ValueError also where it is nested too deeply."""
    return _decoded(msgspec.json.decode, content, kind)


def decoded_msgpack(content: bytes, kind: type[T]) -> T:
    """Decode MessagePack that another program may have written. Raises ValueError as `decoded_json` does."""
    return _decoded(msgspec.msgpack.decode, content, kind)


def _decoded(decode: Callable[..., T], content: bytes | str, kind: type[T]) -> T:
    try:
        return decode(content, type=kind)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def open_partial(path: Path) -> BinaryIO:
    """Open a file that this program completes, unbuffered, for reading and writing; an absent one is created.

    Raises OSError for a link, which might lead anywhere, a file with further names, a pipe or a device.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.fdopen(_regular(str(path), flags), "r+b", buffering=0)
    if os.fstat(file.fileno()).st_nlink > 1:
        file.close()
        raise OSError(errno.EMLINK, "it has another name too", str(path))
    return cast(BinaryIO, file)


def open_locked(path: Path) -> BinaryIO:
    """Open a file as `open_partial` does, and lock it for this process until it is closed.

    Raises BlockingIOError while another one holds the lock, and OSError as `open_partial` does.
    """
    file = open_partial(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        file.close()
        raise
    return file


def write_all(file: BinaryIO, block: bytes) -> None:
    """Write a whole block to an unbuffered file, which may take a part of it at a time."""
    rest = memoryview(block)
    while rest:
        rest = rest[file.write(rest) :]


@contextmanager
def writing_whole(path: Path) -> Iterator[BinaryIO]:
    """Write a temporary file that replaces `path` when the block succeeds and is removed when it fails.

    Where `path` is a link, its target is replaced; a pipe or a device is written directly. Raises OSError.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file() and not path.is_dir():
        with path.open("wb") as file:
            yield file
        return
    with _replacing(path, 0o666) as file:
        yield file


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` to a file atomically, as `writing_whole` does."""
    with writing_whole(path) as file:
        file.write(content)


def unfinished(folder: Path) -> list[Path]:
    """Return the temporary files of `writing_whole` in a folder: of those who write now, or were killed before."""
    return list(folder.glob(f"*{_UNFINISHED}"))


def write_private(path: Path, content: bytes) -> None:
    """Replace `path` atomically by a file of mode 0600; a missing folder is created with mode 0700. Raises OSError.

    Of two concurrent writers, the later one's file remains.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _replacing(path, 0o600) as file:
        file.write(content)


def check_room(folder: Path, num_bytes: int) -> None:
    """Raise OSError (ENOSPC) where writing that much would leave less than SPARE_BYTES free on the folder's disk."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes + SPARE_BYTES:
        reason = f"{num_bytes:,} bytes more, with {SPARE_BYTES:,} to spare, do not fit into the {free:,} that are free"
        raise OSError(errno.ENOSPC, reason, str(folder))


@contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """Provide a private folder, removed at the end. Those of the same name that killed processes left are removed.

    Raises OSError where it cannot be made.
    """
    for left in parent.glob(f".{glob.escape(name)}.scratch-*"):
        if not _is_running(left.suffix.removeprefix(".scratch-").partition("-")[0]):
            shutil.rmtree(left, ignore_errors=True)
    with _naming(parent):
        scratch = TemporaryDirectory(prefix=f".{name}.scratch-{os.getpid()}-", dir=parent, ignore_cleanup_errors=True)
    with scratch as made:
        yield Path(made)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Have an OSError name `path`, of which its reader knows, instead of a temporary file."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def _is_running(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _regular(path: str, flags: int) -> int:
    file = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if stat.S_ISREG(os.fstat(file).st_mode):
        os.set_blocking(file, True)  # a file of /proc or of FUSE may have nothing to read yet
        return file
    os.close(file)
    raise OSError(errno.EINVAL, "it is not a regular file", path)


@contextmanager
def _replacing(path: Path, mode: int) -> Iterator[BinaryIO]:
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_UNFINISHED}")
    try:
        with _naming(path):
            opened = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(opened, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
