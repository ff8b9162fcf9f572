"""File permissions: the workbench's own files are private to its user; files that a person names follow their umask."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.settings import shipped_folder

OTHERS = 0o077
SHIPPED = frozenset({"catalogue", "demo", "prices", "prompts", "reference"})
"""Folders of data/ in a checkout that the workbench never writes: their permissions stay as checked out."""

_persons: list[int] = []


def begin() -> None:
    """Make new files and folders of this process and its children private to its user from now on (umask 077)."""
    _persons.append(os.umask(OTHERS))


def end() -> None:
    """Undo the last `begin`."""
    os.umask(_persons.pop())


@contextmanager
def persons_umask() -> Iterator[None]:
    """Apply the umask from before `begin` within the block, for files that a person names themselves."""
    if not _persons:
        yield
        return
    before = os.umask(_persons[0])
    try:
        yield
    finally:
        os.umask(before)


def tighten(path: Path) -> None:
    """Remove group and other permissions from a file, or from a folder and its contents, where owned by this user.

    Unchanged: symbolic links and files with several hard links, which may be shared, and data that ships in a checkout.
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
