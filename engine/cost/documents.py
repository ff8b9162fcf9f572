"""Document counts: words and tokens of real documents, from a folder or from given files."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from engine.errors import ConfigError, LimitExceeded, WorkerDied
from engine.files import expanded_path, open_regular

MOST_BYTES = 8 << 20
"""Limit of one document: a larger one is not a text that would be processed in one piece."""

MOST_BYTES_IN_ALL = 256 << 20
MOST_DOCUMENTS = 10_000
MOST_FOLDERS = 5_000

CountTokens = Callable[[str], int]
OnFile = Callable[[int, int], object]
"""Called before each file with the numbers of files read and of all files; what it raises ends the count."""


class Document(NamedTuple):
    """A counted document; name: its path within the folder."""

    name: str
    num_words: int
    num_tokens: int


class Skipped(NamedTuple):
    """A file that was not counted, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Counted:
    """Documents in the order read. is_complete: False where a limit was reached before the last file."""

    documents: tuple[Document, ...]
    skipped: tuple[Skipped, ...]
    is_complete: bool = True

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents together."""
        return sum(document.num_tokens for document in self.documents)

    @property
    def num_words(self) -> int:
        """Words of all documents together."""
        return sum(document.num_words for document in self.documents)


def count_folder(folder: str | Path, count: CountTokens, on_file: OnFile = lambda _number, _num_files: None) -> Counted:
    """Count words and tokens of every text file in `folder` and below; `count` returns the tokens of a text.

    Hidden files and folders are passed over. Files that are empty, binary, larger than 8 MiB or unreadable, that the
    tokenizer refuses, takes too long for or dies on, and links to files outside the folder, are listed with the reason.
    Up to 10,000 documents and 256 MiB are read. Raises ConfigError where the folder cannot be read, and any other error
    that `count` raises.
    """
    root = expanded_path(folder)
    try:
        root = root.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"{folder}: no such folder ({error}): give the path of a folder") from None
    if not root.is_dir():
        raise ConfigError(f"{folder}: is a file, not a folder: give the folder that contains it")
    files = islice(_files(root), 2 * MOST_DOCUMENTS + 1)  # no more can be counted and skipped
    return _count([(str(path.relative_to(root)), _reader(path, root)) for path in files], count, on_file)


def count_texts(
    files: Iterable[tuple[str, bytes]], count: CountTokens, on_file: OnFile = lambda _number, _num_files: None
) -> Counted:
    """Count words and tokens of files given as names and contents."""
    return _count([(name, _giver(content)) for name, content in files], count, on_file)


class _Unfit(Exception):
    """Raised for a document that cannot be counted; the text gives the reason."""


def _count(files: Sequence[tuple[str, Callable[[], bytes]]], count: CountTokens, on_file: OnFile) -> Counted:
    documents: list[Document] = []
    skipped: list[Skipped] = []
    num_bytes = 0
    for number, (name, read) in enumerate(files):
        on_file(number, len(files))
        if len(documents) == MOST_DOCUMENTS or len(skipped) == MOST_DOCUMENTS or num_bytes >= MOST_BYTES_IN_ALL:
            return Counted(tuple(documents), tuple(skipped), is_complete=False)
        try:
            content = read()
            text = _text(content)
            num_bytes += len(content)
            documents.append(Document(name, len(text.split()), count(text)))
        except (_Unfit, ConfigError, LimitExceeded) as error:
            skipped.append(Skipped(name, str(error)))
        except WorkerDied as error:
            skipped.append(Skipped(name, f"the tokenizer exited on it: {error}"))
    return Counted(tuple(documents), tuple(skipped))


def _text(content: bytes) -> str:
    if len(content) > MOST_BYTES:
        raise _Unfit(f"larger than {MOST_BYTES >> 20} MiB")
    if b"\0" in content:
        raise _Unfit("binary, not text")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _Unfit(f"not UTF-8 text (byte {error.start:,})") from None
    if not text.strip():
        raise _Unfit("empty")
    return text


def _files(root: Path) -> Iterator[Path]:
    """Yield every file that is not hidden, by name within each folder; links to folders are not followed.

    Folders that are not entered, as MOST_FOLDERS were, are yielded themselves.
    """
    for num_folders, (folder, folders, names) in enumerate(os.walk(root), 1):
        within = sorted(name for name in folders if not name.startswith("."))
        folders[:] = within if num_folders < MOST_FOLDERS else []
        yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))
        yield from (Path(folder, name) for name in within[len(folders) :])


def _reader(path: Path, root: Path) -> Callable[[], bytes]:
    def read() -> bytes:
        try:
            real = path.resolve(strict=True)
            if not real.is_relative_to(root):
                raise _Unfit("a link to outside the folder")
            if real.is_dir():
                raise _Unfit(f"a folder that was not read: the limit is {MOST_FOLDERS:,} folders")
            if not real.is_file():
                raise _Unfit("not a regular file")
            with open_regular(real) as file:
                # Linux gives size 0 for files that it generates, of which some, as /proc/kmsg, are read for ever.
                return file.read(MOST_BYTES + 1) if os.fstat(file.fileno()).st_size else b""
        except (OSError, RuntimeError) as error:
            raise _Unfit(f"cannot be read ({getattr(error, 'strerror', None) or error})") from None

    return read


def _giver(content: bytes) -> Callable[[], bytes]:
    return lambda: content
