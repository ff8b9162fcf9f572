"""Copies of the history for other processes of this user, taken while its owner writes nothing.

The owner listens on a socket beside the file. It only promises to write nothing for a while: the other process copies,
so that no path and no data of a stranger reaches the owner.
"""

import logging
import os
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.errors import HistoryError
from engine.history.console_copy import copy_database
from engine.history.owned_file import OwnedFile

ANSWER_S = 5.0
"""Time for the owner to end what it writes."""

COPY_S, COPY_BYTES_PER_S = 5.0, 50_000_000
"""What a copy may take, by the size of the file: of slow disks, so that no reader keeps the owner from writing."""

_STILL, _DONE, _WAS_STILL = b"s", b"d", b"w"
_LONGEST_ADDRESS = 100  # bytes: sun_path has 108 on Linux and 104 on macOS
log = logging.getLogger(__name__)


class Lender:
    """The owner's side: one thread that lets one process at a time copy the file. Safe to close twice."""

    def __init__(self, file: OwnedFile) -> None:
        self._file = file
        self._path = _socket_of(file.path)
        self._is_closed = False
        self._peer: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._path.unlink(missing_ok=True)  # of an owner that was killed: this process holds the file's lock
            with _address(self._path) as address:
                self._listener.bind(address)
            self._path.chmod(0o600)  # nobody connects before listen()
            self._listener.listen(8)
        except OSError as error:
            log.warning("The history cannot be read by other processes while it is open: %s", error)
            self._listener.close()
            return
        threading.Thread(target=self._serve, name="history-lender", daemon=True).start()

    def close(self) -> None:
        """Let nobody copy any more; a copy that is being taken is told so, and not used."""
        if self._is_closed:
            return
        self._is_closed = True
        for end in (self._listener, self._peer):
            if end is not None:
                with suppress(OSError):  # not connected any more
                    end.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while not self._is_closed:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer, suppress(OSError):
                self._peer = peer
                if _is_same_user(peer):
                    self._lend(peer)

    def _lend(self, peer: socket.socket) -> None:
        with suppress(HistoryError):  # closed meanwhile
            self._file.while_still(lambda: self._stand_still(peer)).result()

    def _stand_still(self, peer: socket.socket) -> None:
        """Write nothing until the peer has its copy, is gone, or its time is over."""
        if self._is_closed:
            return
        with suppress(OSError):
            peer.settimeout(COPY_S + self._file.path.stat().st_size / COPY_BYTES_PER_S)
            peer.sendall(_STILL)
            if peer.recv(1) == _DONE:
                peer.sendall(_WAS_STILL)


def copy_from_owner(path: Path, target: Path) -> None:
    """Copy the history that another process owns to `target`, in a private folder, with its log beside it.

    Raises ConnectionError where no owner listens or it closes meanwhile, TimeoutError where it does not answer within
    ANSWER_S, OSError where the disk does not take the copy. Never to be used for a file that this process owns: to
    read it here would drop DuckDB's lock.
    """
    with socket.socket(socket.AF_UNIX) as owner:
        owner.settimeout(ANSWER_S)
        try:
            with _address(_socket_of(path)) as address:
                owner.connect(address)
        except FileNotFoundError as error:
            raise ConnectionRefusedError(str(error)) from error
        if owner.recv(1) != _STILL:
            raise ConnectionResetError("the owner has closed")
        copy_database(path, target)
        owner.sendall(_DONE)
        if owner.recv(1) != _WAS_STILL:
            raise ConnectionResetError("the copy took too long, or the owner has closed")


def _socket_of(path: Path) -> Path:
    return Path(f"{path}.socket")


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """The address of a socket; on Linux one that is too long is shortened by way of its open folder."""
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS or sys.platform != "linux":
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _is_same_user(peer: socket.socket) -> bool:
    """Whether the other end is a process of this user; where the system does not say, the file's mode 0600 does."""
    if sys.platform != "linux":
        return True
    _pid, user, _group = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.geteuid())
