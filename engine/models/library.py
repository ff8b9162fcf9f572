"""Model library: the model files of this machine, shipped, in the user's folders, or in caches of other programs."""

import contextlib
import difflib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ConfigError, ModelError
from engine.models.details import facts, readable
from engine.models.folders import is_model_folder
from engine.models.gguf import ModelFile
from engine.models.header_cache import HeaderCache, header_cache
from engine.models.identity import known_hashes
from engine.models.places import Candidate, Place, candidates, find_places, leads_to, link_refusal
from engine.settings import shipped_folder


@dataclass(frozen=True)
class BrokenFile:
    """GGUF file or model folder that cannot be used; `reason` names the file and the reason."""

    path: Path
    reason: str


@dataclass(frozen=True)
class LibraryEntry:
    """Library entry: a model, or a file that cannot be used as one.

    `labels` are its names in its place: a path within the folder, owner/name in the hub's cache, name:tag in Ollama's.
    sha256: of its first file where `model_hash` has read it, else None; None for a folder.
    """

    place: Place
    labels: tuple[str, ...]
    file: ModelFile | BrokenFile
    sha256: str | None

    @property
    def label(self) -> str:
        """Its name in its place, comma-separated where one file has several."""
        return ", ".join(self.labels)

    @property
    def name(self) -> str:
        """Name in the header; the label for a model of Ollama, which is known by its label, and for a broken file."""
        if isinstance(self.file, BrokenFile) or self.place.layout == "ollama":
            return self.label
        return readable(self.file.name)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; for a broken file only its names, its path and the reason."""
        about = {"name": self.name, "place": self.place.name, "label": self.label}
        if isinstance(self.file, BrokenFile):
            return {**about, "path": readable(self.file.path), "reason": self.file.reason}
        return {**about, **facts(self.file), "sha256": self.sha256}


def shipped(*parts: str) -> Path:
    """Return the path of a file or folder of the data that ships, read-only."""
    return shipped_folder().joinpath(*parts)


def embedded_model() -> Path:
    """Return the path of the demonstration model that ships."""
    return shipped("demo", "story.gguf")


def list_models(folder: str | Path) -> list[ModelFile | BrokenFile]:
    """List the models in `folder` and up to three levels below, folder by folder, as `read_library` does."""
    return [entry.file for entry in read_library([Place("Folder", Path(folder).absolute())])]


def read_library(
    places: Sequence[Place] | None = None, on_progress: Callable[[float], None] | None = None
) -> list[LibraryEntry]:
    """Read all models of these places (None: all of this machine), place by place, folder by folder.

    A file is listed once, whatever the number of its names. Split models count as one. Unusable files are listed with
    the reason. `on_progress` is called with 0 to 1: a header that is not cached takes 5 to 50 ms.
    """
    offered = list(_offered(find_places() if places is None else places))
    cache = header_cache()
    files = []
    for number, (place, _labels, candidate) in enumerate(offered, 1):
        files.append(_read(place, candidate, cache))
        if on_progress is not None:
            on_progress(number / len(offered))
    cache.save()
    hashes = known_hashes(file.path for file in files if isinstance(file, ModelFile))
    return [
        LibraryEntry(place, tuple(map(readable, labels)), file, hashes.get(file.path))
        for (place, labels, _candidate), file in zip(offered, files, strict=True)
    ]


def find_model(name: str, places: Sequence[Place] | None = None) -> ModelFile:
    """Return the model at this path, or the one with this name or label in the library.

    Raises ModelError for a file that cannot be used, ConfigError where no model or more than one matches.
    """
    if os.path.isfile(name) or is_model_folder(Path(name)):
        return header_cache().read(Path(name).absolute())
    entries = read_library(places)
    found = [entry for entry in entries if name in (entry.name, *entry.labels)]
    if not found:
        known = [entry.name for entry in entries]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "`models list` shows all models"
        raise ConfigError(f"There is no model {name!r} here; {hint}")
    if len(found) > 1:
        paths = ", ".join(readable(entry.file.path) for entry in found)
        raise ConfigError(f"{len(found)} models are called {name!r}: {paths}. Give the path of one of them")
    if isinstance(found[0].file, BrokenFile):
        raise ModelError(found[0].file.reason)
    return found[0].file


_Offered = tuple[Place, list[str], Candidate]


def _offered(places: Sequence[Place]) -> Iterator[_Offered]:
    """Yield candidates with their labels; a file found again in the same place only adds a label."""
    found: dict[object, _Offered] = {}
    for place in places:
        for candidate in candidates(place):
            first, labels, _ = found.setdefault(_identity(candidate), (place, [], candidate))
            if first == place and candidate.label not in labels:
                labels.append(candidate.label)
    yield from found.values()


def _identity(candidate: Candidate) -> object:
    """Return a key that is equal for two names of one file."""
    if not candidate.refusal:
        with contextlib.suppress(OSError, ValueError):
            status = candidate.path.stat()
            return status.st_dev, status.st_ino
    return candidate.path


def _read(place: Place, candidate: Candidate, cache: HeaderCache) -> ModelFile | BrokenFile:
    path, refusal = candidate.path, candidate.refusal
    if refusal:
        return BrokenFile(path, readable(f"{path}: {refusal}"))
    try:
        file = cache.read(path)
    except ModelError as error:
        return BrokenFile(path, readable(str(error)))
    for part in file.files:
        target = leads_to(part, place.folder)
        if target is not None:
            return BrokenFile(path, readable(f"{part}: {link_refusal(target)}"))
    return file
