"""Models of a node: those that it has at the front's path, and those that a front sends, in its home folder.

Files that arrive lie in cluster/models/KEY, where KEY is the hash of all files of the model; each has a hidden name
until it is whole and its hash is right. Data of a transfer that broke off is kept, and read again for its hash.
"""

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from engine.cluster.model_files import BLOCK_BYTES, Have, ModelOffer
from engine.errors import EngineError, ModelError
from engine.files import check_room
from engine.models.identity import keep_hash, model_hash
from engine.models.incoming import BeingWritten, Incoming, locked
from engine.models.reading import read_model
from engine.tasks import Stopped, Task
from engine.units import quantity

LEASE_S = 30.0
"""Seconds of silence after which another transfer of the same files goes on in the place of one."""

KEPT_S = 7 * 86_400.0
"""Seconds for which the data of a transfer that broke off is kept."""

ANSWERS_WITHIN_S = 0.2
"""Longest wait for a check of files before a call is answered."""

_SYNC_BYTES = 64 << 20
"""Bytes after which the disk must have what arrived: the progress is then its own, and the end of a file comes soon."""

Clock = Callable[[], float]


class NodeFiles:
    """Models of this node, under its home folder. All methods may be called from any thread, and raise nothing that a
    front could cause: a refusal is an answer."""

    def __init__(self, home: Path, clock: Clock = time.monotonic) -> None:
        self._home, self._clock = home, clock
        self._lock = threading.Lock()
        self._arriving: dict[str, _Arriving] = {}
        _remove_old(home)

    def offer(self, model: dict[str, Any], sender: str) -> Have:
        """Say what is here of a model that a front offers (a ModelOffer as plain values), and reserve its transfer for
        `sender`, an id of the transfer. Repeat it while the answer is "checking" or "busy"."""
        try:
            offer = msgspec.convert(model, ModelOffer)
        except ValueError as error:
            return Have("failed", error=f"the offer is refused: {error}")
        with self._lock:
            arriving = self._arriving.get(offer.key)
            if arriving is None:
                arriving = self._arriving[offer.key] = _Arriving(offer, self._home, self._clock)
        return self._ended(offer.key, arriving.offer(sender))

    def block(self, key: str, sender: str, index: int, offset: int, data: bytes) -> Have:
        """Take the bytes of file `index` from `offset`, at most BLOCK_BYTES; those that are here are skipped."""
        arriving = self._arriving.get(key)
        if arriving is None:
            return Have("lost")
        return self._ended(key, arriving.block(sender, index, offset, data))

    def finish(self, key: str, sender: str, index: int) -> Have:
        """End file `index`: compare its hash, and give it its name."""
        arriving = self._arriving.get(key)
        return Have("lost") if arriving is None else self._ended(key, arriving.finish(sender, index))

    def abort(self, key: str, sender: str) -> None:
        """Give a transfer up. What has arrived is kept for the next one."""
        arriving = self._arriving.get(key)
        if arriving is not None and arriving.abort(sender):
            self._drop(key)

    def close(self) -> None:
        """Give all transfers up."""
        for key in list(self._arriving):
            self._drop(key)

    def _ended(self, key: str, have: Have) -> Have:
        if have.state in ("whole", "failed"):
            self._drop(key)
        return have

    def _drop(self, key: str) -> None:
        with self._lock:
            arriving = self._arriving.pop(key, None)
        if arriving is not None:
            arriving.close()


def _remove_old(home: Path) -> None:
    """Remove what transfers left that broke off more than KEPT_S ago."""
    for path in _models_folder(home).glob("*/.*.partial"):
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > KEPT_S:
                path.unlink()


def _models_folder(home: Path) -> Path:
    return home / "cluster" / "models"


class _Arriving:
    """One model that is being looked for or received.

    _num_done: files that are whole; the next one is open as _incoming, or being looked for by _look. _path: of the
    whole model, "" until it is found.
    """

    def __init__(self, offer: ModelOffer, home: Path, clock: Clock) -> None:
        self._offer, self._home, self._clock = offer, home, clock
        self._folder = _models_folder(home) / offer.key
        self._lock = threading.RLock()
        self._sender, self._heard_at = "", 0.0
        self._num_done, self._path = 0, ""
        self._is_closed = False
        self._incoming: Incoming | None = None
        self._open = ExitStack()
        self._look: Task[None] | None = None

    def offer(self, sender: str) -> Have:
        with self._lock:
            if sender == self._sender:
                self._heard_at = self._clock()
            if self._is_closed:
                return Have("lost")
            look = self._look or self._begin_look()
        look.wait(ANSWERS_WITHIN_S)
        with self._lock:
            return self._have(sender)

    def block(self, sender: str, index: int, offset: int, data: bytes) -> Have:
        with self._lock:
            if sender != self._sender:
                return Have("lost")
            self._heard_at = self._clock()
            incoming = self._incoming
            if incoming is None or index != self._num_done or offset > incoming.num_bytes:
                return self._have(sender)
            if len(data) > BLOCK_BYTES:
                return self._failed(ModelError(f"a block of {len(data):,} bytes arrived; the most is {BLOCK_BYTES:,}"))
            try:
                before = incoming.num_bytes
                incoming.take(data[before - offset :])
                if incoming.num_bytes // _SYNC_BYTES > before // _SYNC_BYTES:
                    incoming.sync()
            except (EngineError, OSError) as error:
                return self._failed(error)
            return self._have(sender)

    def finish(self, sender: str, index: int) -> Have:
        with self._lock:
            if sender != self._sender:
                return Have("lost")
            self._heard_at = self._clock()
            file = self._offer.files[self._num_done] if self._num_done < len(self._offer.files) else None
            incoming = self._incoming
            if file is None or incoming is None or index != self._num_done or incoming.num_bytes < file.size:
                return self._have(sender)
            path = self._folder / file.name
            try:
                incoming.finish(path)
            except (EngineError, OSError) as error:
                return self._failed(error)
            keep_hash(path, file.sha256, self._home)
            self._let_go()
            self._num_done += 1
            look = self._begin_look()
        look.wait(ANSWERS_WITHIN_S)
        with self._lock:
            return self._have(sender)

    def abort(self, sender: str) -> bool:
        """Give the transfer of `sender` up; return whether nobody is left who sends."""
        with self._lock:
            if self._sender not in ("", sender):
                return False
            self.close()
            return True

    def close(self) -> None:
        """Stop looking, and release the file that is open."""
        with self._lock:
            if self._look is not None:
                self._look.stop()
            self._is_closed = True
            self._let_go()

    # all below with the lock held, but for the look's own work

    def _have(self, sender: str) -> Have:
        """Say where it stands; reserves it for `sender` where nobody sends, or nobody was heard of for LEASE_S."""
        look = self._look
        if look is not None and look.is_running:
            return Have("checking", look.share)
        error = None if look is None else look.error
        if isinstance(error, BeingWritten):
            self._look = None  # the next offer looks again
            return Have("busy", self._share())
        if isinstance(error, Stopped) or self._is_closed:
            return Have("lost")
        if error is not None:
            return self._failed(error)
        if self._path:
            return Have("whole", 1.0, self._path)
        now = self._clock()
        if self._sender not in ("", sender) and now - self._heard_at < LEASE_S:
            return Have("busy", self._share())
        self._sender, self._heard_at = sender, now
        return Have("wanted", self._share(), index=self._num_done, offset=self._num_bytes())

    def _begin_look(self) -> Task[None]:
        self._look = Task[None](self._offer.name or "A model", self._find).start()
        return self._look

    def _find(self, task: Task[None]) -> None:
        """Find the model at the front's path, else the next file that is missing, and open it."""
        try:
            if self._num_done == 0 and self._is_at_front_path(task):
                self._found(self._offer.path)
                return
            while self._num_done < len(self._offer.files) and self._is_kept(task):
                self._num_done += 1
            if self._num_done < len(self._offer.files):
                self._receive(task)
            else:
                first = self._folder if self._offer.is_folder else self._folder / self._offer.files[0].name
                self._found(str(first))
        except OSError as error:
            raise ModelError(self._reason(error)) from error

    def _found(self, path: str) -> None:
        with self._lock:
            self._path = path

    def _is_at_front_path(self, task: Task[None]) -> bool:
        """Return True where the same files lie at the same path here."""
        offer, done = self._offer, 0
        if not os.path.isabs(offer.path) or "\0" in offer.path:
            return False
        places = offer.places()
        sizes = [file.size for file in offer.files]
        try:
            if [path.stat().st_size if path.is_file() else -1 for path in places] != sizes:
                return False
            if offer.is_folder and list(read_model(offer.path).files) != places:
                return False
            for path, file in zip(places, offer.files, strict=True):
                if self._hash(path, done, task) != file.sha256:
                    return False
                done += file.size
        except Stopped:
            raise
        except (EngineError, OSError):  # a file that cannot be read is as good as none
            return False
        return True

    def _is_kept(self, task: Task[None]) -> bool:
        """Return True where the next file has arrived before, and is still the same."""
        file = self._offer.files[self._num_done]
        path = self._folder / file.name
        if path.is_symlink() or not path.is_file() or path.stat().st_size != file.size:
            return False
        return self._hash(path, self._done_bytes(), task) == file.sha256

    def _hash(self, path: Path, before: int, task: Task[None]) -> str:
        total = self._offer.size or 1
        return model_hash(path, self._home, lambda num_bytes: task.update((before + num_bytes) / total, ""))

    def _receive(self, task: Task[None]) -> None:
        """Open the next file, with what an earlier transfer left of it. Raises OSError where the disk has no room."""
        file = self._offer.files[self._num_done].remote
        path = self._folder / file.path
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = ExitStack()
        try:
            kept = opened.enter_context(locked(path, file))
            before, total = self._done_bytes(), self._offer.size or 1
            incoming = Incoming(file, kept, lambda num_bytes: task.update((before + num_bytes) / total, ""))
            check_room(self._folder, self._missing_bytes() - incoming.num_bytes)
            with self._lock:
                task.check()  # close() stops it under this lock
                self._incoming, self._open = incoming, opened
        except BaseException:
            opened.close()
            raise

    def _let_go(self) -> None:
        self._incoming = None
        self._open.close()

    def _failed(self, error: EngineError | OSError) -> Have:
        reason = self._reason(error) if isinstance(error, OSError) else str(error)
        self._let_go()
        return Have("failed", self._share(), error=reason)

    def _reason(self, error: OSError) -> str:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return f"{error.filename or self._folder} cannot be written ({error.strerror})"
        needed = self._missing_bytes() - self._num_bytes()
        free = shutil.disk_usage(self._home).free
        return (
            f"it needs {quantity(needed, 'B')} more on the disk of {self._folder.parent}, and {quantity(free, 'B')} is "
            "free. What has arrived is kept: free some space, then start it again"
        )

    def _num_bytes(self) -> int:
        return self._incoming.num_bytes if self._incoming is not None else 0

    def _done_bytes(self) -> int:
        return sum(file.size for file in self._offer.files[: self._num_done])

    def _missing_bytes(self) -> int:
        """Return the bytes of the files that are not whole."""
        return self._offer.size - self._done_bytes()

    def _share(self) -> float:
        return (self._done_bytes() + self._num_bytes()) / (self._offer.size or 1)
