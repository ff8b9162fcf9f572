"""Streaming archive export for downloads: the archive is never whole in memory, nor on this disk."""

import io
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, BinaryIO, Self, cast

from engine.errors import HistoryError
from engine.history.archives.exporting import export_history
from engine.history.store import History

log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 18
AHEAD = 4
ABSENT_S = 60.0
_POLL_S = 0.1


class ArchivePieces:
    """Iterator over the bytes of `export_history`, which runs in a thread of its own; to be read by one thread.

    The export thread waits while the reader is behind. It ends on `close`, when the history closes, or when the reader
    has taken nothing for ABSENT_S seconds. Raises HistoryError as `export_history` does, also where writing fails
    midway.
    """

    def __init__(
        self, history: History, *, run_ids: Iterable[str] | None = None, trial_ids: Iterable[str] | None = None
    ) -> None:
        self._history = history
        self._pieces: queue.Queue[bytes] = queue.Queue(AHEAD)
        self._is_closed = threading.Event()
        self._failure = ""
        self._writer = threading.Thread(
            target=self._write, args=(run_ids, trial_ids), name="logitbench-export", daemon=True
        )
        self._writer.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        while self._writer.is_alive() or not self._pieces.empty():
            with suppress(queue.Empty):
                return self._pieces.get(timeout=_POLL_S)
        if self._failure:
            raise HistoryError(self._failure)
        raise StopIteration

    def close(self) -> None:
        """Stop the export, which ends shortly afterwards. May be called from any thread, and repeatedly."""
        self._is_closed.set()

    def _write(self, run_ids: Iterable[str] | None, trial_ids: Iterable[str] | None) -> None:
        sink = _Sink(self._put)
        try:
            export_history(self._history, cast(BinaryIO, sink), run_ids=run_ids, trial_ids=trial_ids)
            sink.hand_on()
        except (HistoryError, BrokenPipeError) as error:
            self._failure = str(error)  # the error itself would keep references to the rows read, and to the database
        except Exception as defect:
            log.exception("exporting an archive failed")
            self._failure = f"The archive could not be written because of an internal error: {defect!r}"

    def _put(self, piece: bytes) -> None:
        end = time.monotonic() + ABSENT_S
        while not self._is_closed.is_set() and not self._history.file.is_closing and time.monotonic() < end:
            with suppress(queue.Full):
                return self._pieces.put(piece, timeout=_POLL_S)
        raise BrokenPipeError("its reader has gone")


class _Sink(io.RawIOBase):
    """Writable file object that passes on the data in pieces of PIECE_BYTES."""

    def __init__(self, put: Callable[[bytes], None]) -> None:
        self._put, self._begun = put, bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        left = whole = memoryview(data).cast("B")
        while left:
            room = PIECE_BYTES - len(self._begun)
            self._begun += left[:room]
            left = left[room:]
            if len(self._begun) == PIECE_BYTES:
                self.hand_on()
        return len(whole)

    def hand_on(self) -> None:
        """Pass on the current, possibly incomplete piece."""
        piece, self._begun = bytes(self._begun), bytearray()
        self._put(piece)
