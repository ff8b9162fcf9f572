"""File permissions: what the workbench keeps is its user's alone, what a person asks for follows their umask."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.settings import shipped_folder

OTHERS = 0o077
SHIPPED = frozenset({"catalogue", "demo", "prices", "prompts", "reference"})
"""What lies in data/ of a checkout and is not written there: it stays as it was checked out."""

_persons: list[int] = []


def begin() -> None:
    """Files and folders that this process and its children make from now on are its user's alone (umask 077)."""
    _persons.append(os.umask(OTHERS))


def end() -> None:
    """Undo the last `begin`."""
    os.umask(_persons.pop())


@contextmanager
def persons_umask() -> Iterator[None]:
    """For a file that a person names themselves: their own umask, as it was before `begin`."""
    if not _persons:
        yield
        return
    before = os.umask(_persons[0])
    try:
        yield
    finally:
        os.umask(before)


def tighten(path: Path) -> None:
    """Take the permissions of others from a file, or from a folder and all in it that is this user's.

    Left as they are: links and files with several names, which belong to others too, and what ships in a checkout.
    """
    is_checkouts = path == shipped_folder()
    if not is_checkouts:
        _tighten_one(path)
    if not path.is_dir():
        return
    for folder, folders, files in os.walk(path):
        if is_checkouts and Path(folder) == path:
            folders[:] = [name for name in folders if name not in SHIPPED]
        for name in (*folders, *files):
            _tighten_one(Path(folder, name))


def _tighten_one(path: Path) -> None:
    with suppress(OSError):
        status = path.lstat()
        is_file = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        if status.st_uid == os.geteuid() and status.st_mode & OTHERS and (is_file or stat.S_ISDIR(status.st_mode)):
            path.chmod(stat.S_IMODE(status.st_mode) & ~OTHERS)


def write_private(path: Path, content: bytes) -> None:
    """Replace a file whole by one of mode 0600; of two writers at once the later one's stays. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(content)
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise
