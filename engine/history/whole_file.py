"""Files that appear whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def writing_whole(path: Path) -> Iterator[BinaryIO]:
    """A file beside `path` that takes its place when the block ends well, and leaves nothing behind when it fails.

    Raises OSError.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Write beside `path`, then put it in place; raises OSError, and leaves nothing behind then."""
    with writing_whole(path) as file:
        file.write(content)
