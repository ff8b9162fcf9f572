"""Files of the API on disk: uploaded input of batches and their output, under names of our own."""

import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from engine.api.openai.errors import ApiError
from engine.api.openai.paging import Page
from engine.api.openai.responses import File, Purpose
from engine.errors import quoted
from engine.files import check_room, decoded_json, open_regular, read_regular, scratch_folder, write_private
from engine.ids import new_id

FILE_ID = re.compile("file-[0-9a-f-]{36}")
MOST_BYTES, MOST_FILES = 4 << 30, 1_000
"""All files together, output of batches in progress included; with so many files, none and no batch is added."""
MOST_DESCRIPTION_BYTES = 1 << 16
STORAGE_FULL = "storage_full"
CONTENT, ABOUT = "content.jsonl", "about.json"
_BLOCK = 1 << 20


class Stored(NamedTuple):
    """A file with its content, open for reading."""

    about: File
    content: BufferedReader


class FileStore:
    """Files in a folder of mode 0700, each a folder of its own with content and description, which appears whole.

    Several processes may use it. All methods read or write the disk and may raise OSError.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._adding = threading.Lock()

    def page(self, page: Page, purpose: str) -> tuple[list[File], bool]:
        """Return the files of a page that have this purpose (empty: any), and whether more follow.

        Those that are damaged are left out; `read` says why.
        """
        found: list[File] = []
        for id in page.rest(self._ids()):
            with suppress(ApiError):
                file = self.read(id)
                if purpose in ("", file.purpose):
                    found.append(file)
            if len(found) > page.limit:
                break
        return found[: page.limit], len(found) > page.limit

    def read(self, id: str) -> File:
        """Return the description of a file. Raises ApiError where there is none, or it is damaged."""
        try:
            return decoded_json(read_regular(self._of(id) / ABOUT, MOST_DESCRIPTION_BYTES), File)
        except FileNotFoundError:
            raise unknown(id) from None
        except ValueError as error:
            text = f"The description of the file {id} is damaged ({error})."
            raise ApiError(500, text, type="server_error") from None

    def open(self, id: str) -> Stored:
        """Open a file for reading; it can be read to its end when it is deleted meanwhile. Raises ApiError."""
        about = self.read(id)
        try:
            return Stored(about, open_regular(self._of(id) / CONTENT))
        except FileNotFoundError:
            raise unknown(id) from None

    def add(self, content: BinaryIO, name: str) -> File:
        """Store a file that is uploaded. Raises ApiError where there is no room for it."""
        make_private(self.folder)
        size = content.seek(0, os.SEEK_END)
        content.seek(0)
        with self._adding, scratch_folder(self.folder, "upload") as scratch:
            self.check_count()
            self.check_total(size)
            made = scratch / "file"
            made.mkdir(0o700)
            with open(made / CONTENT, "xb", opener=_private) as copy:
                shutil.copyfileobj(content, copy, _BLOCK)
                copy.flush()
                os.fsync(copy.fileno())
            return self.adopt(made, new_file_id(), name, "batch")

    def adopt(self, made: Path, id: str, name: str, purpose: Purpose) -> File:
        """Make a folder with a content, on the same disk, a file. Raises ApiError for an id that is none."""
        size = (made / CONTENT).stat().st_size
        about = File(id=id, bytes=size, created_at=int(time.time()), filename=name, purpose=purpose)
        write_private(made / ABOUT, msgspec.json.encode(about))
        made.rename(self._of(id))
        return about

    def delete(self, id: str) -> None:
        """Delete a file. Raises ApiError where there is none, also where another caller was first."""
        try:
            (self._of(id) / ABOUT).unlink()  # without a description it is no file any more
        except FileNotFoundError:
            raise unknown(id) from None
        shutil.rmtree(self._of(id), ignore_errors=True)

    def remove_leftovers(self) -> None:
        """Remove what killed processes left of files that they were deleting."""
        for folder in self._folders():
            if not (folder / ABOUT).exists():
                shutil.rmtree(folder, ignore_errors=True)

    def check_count(self) -> None:
        """Raise ApiError where no more files may be added."""
        if sum(1 for _ in self._folders()) >= MOST_FILES:
            raise _full(f"{MOST_FILES:,} files are stored, as many as may be: delete some first.")

    def check_total(self, num_bytes: int) -> None:
        """Raise ApiError where so many bytes more are too many for all files together, OSError for the disk."""
        if self._total() + num_bytes > MOST_BYTES:
            raise _full(f"All files together may have {MOST_BYTES:,} bytes: delete some first.")
        check_room(self.folder, num_bytes)

    def _total(self) -> int:
        """Return the bytes of all contents, those that batches are writing included."""
        total = 0
        for pattern in (f"file-*/{CONTENT}", f"batch_*/*/{CONTENT}"):
            for path in self.folder.glob(pattern):
                with suppress(FileNotFoundError):
                    total += path.stat().st_size
        return total

    def _ids(self) -> Iterator[str]:
        return (folder.name for folder in self._folders())

    def _folders(self) -> Iterator[Path]:
        return (folder for folder in self.folder.glob("file-*") if FILE_ID.fullmatch(folder.name))

    def _of(self, id: str) -> Path:
        if not FILE_ID.fullmatch(id):
            raise unknown(id)
        return self.folder / id


def new_file_id() -> str:
    """Return a new id of a file; ids sort by time."""
    return f"file-{new_id()}"


def make_private(folder: Path) -> None:
    """Create a folder that only this user can enter, or make an existing one so. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def unknown(id: str) -> ApiError:
    """Return the error for a file that does not exist."""
    return ApiError(404, f"There is no file {quoted(id)}.", param="id", code="file_not_found")


def _full(text: str) -> ApiError:
    return ApiError(413, text, code=STORAGE_FULL)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
