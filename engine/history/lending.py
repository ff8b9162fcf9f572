"""History lending: lets other processes of this user copy the history while its owner pauses writing.

The owner listens on a socket next to the file. It only promises to write nothing for a while; the other process makes
the copy, so that the owner receives no paths and no data from other processes.
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
from engine.history.console_copy import copy_database, most_pieces
from engine.history.database_writer import DatabaseWriter

ANSWER_S = 5.0
"""Time for the owner to finish its current writes."""

SILENCE_S = 5.0
"""A reader that reports no progress of its copy for this long loses it, so that no reader blocks writing."""

_STILL, _PIECE, _DONE, _WAS_STILL = b"s", b"p", b"d", b"w"
_LONGEST_ADDRESS = 100  # bytes: sun_path has 108 on Linux and 104 on macOS
log = logging.getLogger(__name__)


class Lender:
    """Owner's side of lending: a thread that lets one process at a time copy the file. Safe to close twice."""

    def __init__(self, file: DatabaseWriter) -> None:
        self._file = file
        self._path = _socket_of(file.path)
        self._is_closed = False
        self._peer: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._path.unlink(missing_ok=True)  # left by a killed owner: this process holds the file's lock now
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
        """Stop lending; a process that is copying notices the closed connection and discards its copy."""
        if self._is_closed:
            return
        self._is_closed = True
        for end in (self._listener, self._peer):
            if end is not None:
                with suppress(OSError):  # no longer connected
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
        """Block the writer until the peer has its copy, disconnects, or makes no progress."""
        if self._is_closed:
            return
        with suppress(OSError):
            peer.settimeout(SILENCE_S)
            peer.sendall(_STILL)
            for _ in range(most_pieces(self._file.path) + 1):
                said = peer.recv(1)
                if said == _DONE:
                    peer.sendall(_WAS_STILL)
                if said != _PIECE:
                    return


def copy_from_owner(path: Path, target: Path) -> None:
    """Copy the history that another process owns to `target`, in a private folder, with its log next to it.

    Raises ConnectionError where no owner listens or it closes meanwhile, TimeoutError where it does not answer within
    ANSWER_S, OSError where the copy cannot be written. Must never be used for a file that this process owns: reading it
    in this process would drop DuckDB's lock.
    """
    with socket.socket(socket.AF_UNIX) as owner:
        owner.settimeout(ANSWER_S)
        try:
            with _address(_socket_of(path)) as address:
                owner.connect(address)
        except FileNotFoundError as error:
            raise ConnectionRefusedError(str(error)) from error
        if owner.recv(1) != _STILL:
            raise ConnectionResetError("the owner closed the connection")
        for _ in copy_database(path, target):
            owner.sendall(_PIECE)
        owner.sendall(_DONE)
        if owner.recv(1) != _WAS_STILL:
            raise ConnectionResetError("the copy took too long, or the owner closed the connection")


def _socket_of(path: Path) -> Path:
    return Path(f"{path}.socket")


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """Provide the address of a socket; on Linux, one that is too long is shortened through its opened folder."""
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS or sys.platform != "linux":
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _is_same_user(peer: socket.socket) -> bool:
    """Return whether the peer is a process of this user; where that is unknown, the socket's mode 0600 ensures it."""
    if sys.platform != "linux":
        return True
    _pid, user, _group = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.geteuid())
