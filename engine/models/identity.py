"""Identity of models, independent of their names: SHA-256 of the bytes, computed once per state of each file."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from engine.errors import ModelError
from engine.files import decoded_json, open_regular, read_regular, write_private
from engine.models.folders import read_folder
from engine.settings import Settings

MAX_KEPT = 1_000

_BLOCK = 1 << 20

Entry = tuple[int, int, str]
"""Size in bytes, modification time in nanoseconds and SHA-256 of a file."""
Tell = Callable[[int], object]
"""Callback with the bytes of a file read so far; what it raises ends the reading."""


def model_hash(path: str | Path, folder: str | Path | None = None, tell: Tell = lambda _num_bytes: None) -> str:
    """Return the SHA-256 of the file as 64 hexadecimal digits; of a folder, that of its files' names and hashes.

    Stored in models/hashes.json under `folder` (None: the home folder of the settings) by path, size and modification
    time, so that only the first call for a file reads it: some seconds per gigabyte, so do not call it on a thread that
    a person waits for. Where the folder cannot be written, the hash is not stored. Raises ModelError when the model
    file cannot be read.
    """
    path = Path(path).resolve()
    if path.is_dir():
        parts = [f"{file.name} {model_hash(file, folder, tell)}\n" for file in read_folder(path).files]
        return hashlib.sha256("".join(parts).encode()).hexdigest()
    store = _store(folder)
    try:
        before = _state(path)
        known = _load(store)
        kept = _kept(known, path, before)
        if kept is not None:
            return kept
        digest = _read_digest(path, tell)
        if _state(path) == before:
            _save(store, known | {str(path): (*before, digest)})
        return digest
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error


def _read_digest(path: Path, tell: Tell) -> str:
    hasher, num_bytes = hashlib.sha256(), 0
    with open_regular(path) as file:
        while block := file.read(_BLOCK):
            hasher.update(block)
            num_bytes += len(block)
            tell(num_bytes)
    return hasher.hexdigest()


def known_hashes(paths: Iterable[Path], folder: str | Path | None = None) -> dict[Path, str]:
    """Return the stored hashes of files that `model_hash` has read in their current state; reads no model file.

    None of a folder, which has no hash of its own.
    """
    known = _load(_store(folder))
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            resolved = path.resolve()
            kept = _kept(known, resolved, _state(resolved))
            if kept is not None:
                found[path] = kept
    return found


def keep_hash(path: Path, digest: str, folder: str | Path | None = None) -> None:
    """Store the SHA-256 that a file was just verified to have, so that `model_hash` need not read it."""
    store = _store(folder)
    with contextlib.suppress(OSError):
        _save(store, _load(store) | {str(path.resolve()): (*_state(path), digest)})


def _store(folder: str | Path | None) -> Path:
    return Path(folder or Settings.from_environment().home, "models", "hashes.json")


def _kept(known: dict[str, Entry], path: Path, state: tuple[int, int]) -> str | None:
    entry = known.get(str(path))
    return entry[-1] if entry is not None and entry[:2] == state else None


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _load(store: Path) -> dict[str, Entry]:
    """Return the stored hashes; empty where the file is missing or damaged, since it can be rebuilt."""
    try:
        return decoded_json(read_regular(store), dict[str, Entry])
    except (OSError, ValueError):
        return {}


def _save(store: Path, known: dict[str, Entry]) -> None:
    """Replace the file, retaining the latest entries; two concurrent writers lose at most one entry."""
    with contextlib.suppress(OSError):
        write_private(store, json.dumps(dict(list(known.items())[-MAX_KEPT:]), indent=1).encode())
