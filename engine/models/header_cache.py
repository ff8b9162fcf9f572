"""Header cache: parsed model files stored by path, size and modification time, so that long lists open at once."""

import contextlib
import os
import threading
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import msgspec

from engine.files import decoded_msgpack, read_regular, write_private
from engine.models.gguf import ModelFile
from engine.models.header import TensorInfo
from engine.models.reading import read_model
from engine.settings import Settings

MAX_KEPT = 2_000
MAX_UNPACKED = 512
"""Unpacked models held in memory, of up to 0.1 MB each; the others take half a millisecond to unpack."""

State = tuple[int, int]
"""Size in bytes and modification time in nanoseconds."""


class _Kept(msgspec.Struct, array_like=True):
    """Cache entry; `model` is a ModelFile as MessagePack, a fifth of its size, unpacked on access."""

    path: bytes
    states: list[State]
    model: bytes


class _Store(msgspec.Struct):
    """Cache file; `form` names the fields of the stored models, and a file of another form counts as empty."""

    form: list[str]
    files: list[_Kept]


_FORM = [*ModelFile.__dataclass_fields__, *TensorInfo._fields]


class HeaderCache:
    """Cache of headers, also from earlier processes.

    Any thread may use it; a store that cannot be read or written only costs time.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._kept = {kept.path: kept for kept in _load(store)}
        self._is_changed = False

    def read(self, path: Path) -> ModelFile:
        """Return the model at an absolute path, as `read_model` does; raises ModelError as that does.

        A folder is read each time: its small files may change, which takes longer to find out than to read them.
        """
        kept = self._kept.get(os.fsencode(path))
        if kept is not None:
            with contextlib.suppress(ValueError, RecursionError):
                model = _unpack(kept.model)
                if kept.states == _states(model.files):
                    return model
        before = _states([path])
        model = read_model(path)
        states = _states(model.files)
        if states and states[:1] == before:
            self._keep(path, states, model)
        return model

    def _keep(self, path: Path, states: list[State], model: ModelFile) -> None:
        with contextlib.suppress(UnicodeEncodeError), self._lock:  # for file names that are not valid text
            self._kept[os.fsencode(path)] = _Kept(os.fsencode(path), states, _pack(model))
            self._is_changed = True

    def save(self) -> None:
        """Rewrite the store where something new was read; of two concurrent processes, the later one's remains."""
        with self._lock:
            if not self._is_changed:
                return
            self._is_changed = False
            content = msgspec.msgpack.encode(_Store(_FORM, list(self._kept.values())[-MAX_KEPT:]))
        with contextlib.suppress(OSError):
            write_private(self._store, content)


def header_cache() -> HeaderCache:
    """Return the cache of this process, stored in models/headers.msgpack of the home folder."""
    return _opened(Settings.from_environment().home / "models" / "headers.msgpack")


@cache
def _opened(store: Path) -> HeaderCache:
    return HeaderCache(store)


def _load(store: Path) -> list[_Kept]:
    try:
        read = decoded_msgpack(read_regular(store), _Store)
    except (OSError, ValueError):
        return []
    return read.files if read.form == _FORM else []


def _states(files: Iterable[Path]) -> list[State]:
    """Return the state of each file; an empty list where one of them has no status."""
    try:
        return [(status.st_size, status.st_mtime_ns) for status in map(os.stat, files)]
    except (OSError, ValueError):
        return []


def _pack(model: ModelFile) -> bytes:
    return msgspec.msgpack.encode(model, enc_hook=str)


@lru_cache(MAX_UNPACKED)
def _unpack(packed: bytes) -> ModelFile:
    return msgspec.msgpack.decode(packed, type=ModelFile, dec_hook=_path)


def _path(kind: type, value: Any) -> Path:
    return Path(value)
