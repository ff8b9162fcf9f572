"""Where model files lie: the one that ships, and those in a person's folder."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelError
from engine.models.gguf import ModelFile, read_model
from engine.models.header import OTHER_PART_NAME
from engine.settings import shipped_folder

MAX_DEPTH = 3
MAX_FILES = 500
MAX_FOLDERS = 5_000


@dataclass(frozen=True)
class BrokenFile:
    """A file called .gguf that cannot be used; `reason` names file and reason."""

    path: Path
    reason: str


def shipped(*parts: str) -> Path:
    """Path of a file or folder of the data that ships, to be read only."""
    return shipped_folder().joinpath(*parts)


def embedded_model() -> Path:
    """The demonstration model that ships."""
    return shipped("demo", "story.gguf")


def list_models(folder: str | Path) -> list[ModelFile | BrokenFile]:
    """The GGUF files in `folder` and up to three levels below, by path; the later parts of a split model left out.

    Stops after 500 files or 5,000 folders. Hidden folders, links to folders and folders that cannot be read are
    passed over; a folder that does not exist holds no models.
    """
    return [_read(path) for path in sorted(_gguf_files(Path(folder)))]


def _read(path: Path) -> ModelFile | BrokenFile:
    try:
        return read_model(path)
    except ModelError as error:
        return BrokenFile(path, str(error))


def _gguf_files(folder: Path) -> Iterator[Path]:
    num_files = 0
    for num_folders, (root, folders, names) in enumerate(os.walk(folder), 1):
        depth = len(Path(root).relative_to(folder).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < MAX_DEPTH else []
        for name in sorted(names):
            if name.lower().endswith(".gguf") and not OTHER_PART_NAME.search(name):
                yield Path(root, name)
                num_files += 1
                if num_files == MAX_FILES:
                    return
        if num_folders == MAX_FOLDERS:
            return
