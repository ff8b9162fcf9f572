"""What was read of each model file, kept by path, size and time of last change, so that a long list opens at once."""

import contextlib
import os
import threading
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import msgspec

from engine.models.gguf import ModelFile, read_model
from engine.models.header import TensorInfo
from engine.private_files import write_private
from engine.settings import Settings

MAX_KEPT = 2_000
MAX_UNPACKED = 512
"""Models held ready, of up to 0.1 MB each; the others take half a millisecond to unpack."""

State = tuple[int, int]
"""Size in bytes and time of last change in nanoseconds."""


class _Kept(msgspec.Struct, array_like=True):
    """`model` is a ModelFile as MessagePack, a fifth of its size; unpacked when it is asked for."""

    path: bytes
    states: list[State]
    model: bytes


class _Store(msgspec.Struct):
    """`form` names the fields of what is kept; a file of another form counts as empty."""

    form: list[str]
    files: list[_Kept]


_FORM = [*ModelFile.__dataclass_fields__, *TensorInfo._fields]


class HeaderCache:
    """Headers read before, also by an earlier process. Any thread may use it; a store that cannot be read or written
    costs only time."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._kept = {kept.path: kept for kept in _load(store)}
        self._is_changed = False

    def read(self, path: Path) -> ModelFile:
        """The model file at an absolute path, as `read_model` gives it; raises ModelError as that does."""
        kept = self._kept.get(os.fsencode(path))
        if kept is not None:
            with contextlib.suppress(msgspec.MsgspecError):
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
        with contextlib.suppress(UnicodeEncodeError), self._lock:  # of a file name that is no text
            self._kept[os.fsencode(path)] = _Kept(os.fsencode(path), states, _pack(model))
            self._is_changed = True

    def save(self) -> None:
        """Write the store whole where something new was read; of two processes at once, the later one's stays."""
        with self._lock:
            if not self._is_changed:
                return
            self._is_changed = False
            content = msgspec.msgpack.encode(_Store(_FORM, list(self._kept.values())[-MAX_KEPT:]))
        with contextlib.suppress(OSError):
            write_private(self._store, content)


def header_cache() -> HeaderCache:
    """The one of this process, kept in models/headers.msgpack of the home folder."""
    return _opened(Settings.from_environment().home / "models" / "headers.msgpack")


@cache
def _opened(store: Path) -> HeaderCache:
    return HeaderCache(store)


def _load(store: Path) -> list[_Kept]:
    try:
        read = msgspec.msgpack.decode(store.read_bytes(), type=_Store)
    except (OSError, msgspec.MsgspecError):
        return []
    return read.files if read.form == _FORM else []


def _states(files: Iterable[Path]) -> list[State]:
    """The state of each file; none where one of them cannot be asked."""
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
