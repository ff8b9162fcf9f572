"""Model files that a person uploads: written beside the other models only after their header has been checked."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from engine.errors import ConfigError, ModelError
from engine.files import SPARE_BYTES, open_locked, write_all
from engine.models.header import FIRST_PART_NAME, OTHER_PART_NAME
from engine.models.reading import read_model
from engine.units import quantity

MOST_BYTES = 200 << 20
"""Bytes of the largest upload: Streamlit keeps the whole of it in memory."""

LONGEST_STEM = 200
"""Bytes of a file's name without its suffix; a file system takes names of up to 255."""

_BLOCK = 1 << 20
_SUFFIX = ".gguf"
_UNUSUAL = re.compile(r"[^\w .()+-]")


def upload_name(name: str) -> str:
    """Return the name of an uploaded file in the folder of models: without folders and unusual characters.

    Raises ConfigError for a name that is not one of a GGUF file, and for a part of a split model.
    """
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    clean = _UNUSUAL.sub("_", last).lstrip(". ")
    stem, suffix = os.path.splitext(clean)
    if suffix.lower() != _SUFFIX or not stem.strip("_ ."):
        raise ConfigError(f"{last[:LONGEST_STEM]!r}: is not the name of a GGUF file; it must end in .gguf")
    if FIRST_PART_NAME.search(clean) or OTHER_PART_NAME.search(clean):
        raise ConfigError(
            f"{last[:LONGEST_STEM]!r}: is one part of a split model; copy all parts into the folder of models"
        )
    return f"{stem.encode()[:LONGEST_STEM].decode('utf-8', 'ignore').rstrip()}{_SUFFIX}"


def take_upload(name: str, file: BinaryIO, folder: Path) -> Path:
    """Copy an uploaded GGUF file into `folder`, which exists, and return its path.

    It is written under a hidden name and gets its own only when its header is that of a whole, usable model; an
    existing file is never replaced. Raises ConfigError for an unusable name or one that is taken, ModelError for a file
    that is too large, damaged or no model, and where it cannot be written; nothing remains of it then.
    """
    target = folder / upload_name(name)
    if os.path.lexists(target):
        raise ConfigError(f"{target} already exists; rename the file, or remove that one first.")
    partial = target.with_name(f".{target.name}.partial")
    try:
        with _locked(partial, target) as kept:
            _copy(file, kept, target)
            _check(partial, target)
            _publish(partial, target)
    except OSError as error:
        raise ModelError(f"{target}: cannot be written ({error.strerror})") from error
    return target


def _copy(file: BinaryIO, kept: BinaryIO, target: Path) -> None:
    """Write all blocks of an upload to the disk. Raises ModelError where it is too large."""
    kept.truncate(0)
    num_bytes = 0
    while block := file.read(_BLOCK):
        num_bytes += len(block)
        if num_bytes > MOST_BYTES:
            raise ModelError(
                f"{target.name} has more than the {quantity(MOST_BYTES, 'B')} that can be uploaded. Give its "
                "path instead."
            )
        if shutil.disk_usage(target.parent).free < len(block) + SPARE_BYTES:
            raise ModelError(f"The disk of {target.parent} has too little room for {target.name}.")
        write_all(kept, block)
    os.fsync(kept.fileno())


def _check(partial: Path, target: Path) -> None:
    """Raise ModelError, which names the uploaded file, unless it is a usable model."""
    try:
        read_model(partial)
    except ModelError as error:
        raise ModelError(str(error).replace(str(partial), target.name)) from None


def _publish(partial: Path, target: Path) -> None:
    """Give the file its name, unless another file got it meanwhile."""
    try:
        os.link(partial, target)
    except FileExistsError:
        raise ConfigError(f"{target} already exists; rename the file, or remove that one first.") from None


@contextmanager
def _locked(partial: Path, target: Path) -> Iterator[BinaryIO]:
    """Create and lock the partial file for this upload alone; it is removed afterwards."""
    try:
        opened = open_locked(partial)
    except BlockingIOError:
        raise ModelError(f"{target.name} is already being written; wait until that ends.") from None
    with opened as kept:
        try:
            yield kept
        finally:
            partial.unlink(missing_ok=True)
