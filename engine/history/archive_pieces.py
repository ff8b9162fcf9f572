"""An archive piece by piece while it is written, for a download: it never lies whole in memory, nor on this disk."""

import io
import queue
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from engine.history.archive import export_history
from engine.history.store import History

PIECE_BYTES, PIECES_AHEAD = 1 << 18, 8
"""What is written waits when the reader is so far behind."""


def archive_in_pieces(
    history: History, *, run_ids: Iterable[str] | None = None, trial_ids: Iterable[str] | None = None
) -> Iterator[bytes]:
    """The bytes of `export_history`, which runs in a thread of its own; closing the iterator ends it.

    Raises HistoryError as that does, where the writing fails in the middle too.
    """
    pipe = _Pipe()

    def write() -> None:
        end: Exception | None = None
        try:
            with io.BufferedWriter(pipe, PIECE_BYTES) as file:
                export_history(history, file, run_ids=run_ids, trial_ids=trial_ids)
        except Exception as error:
            end = error
        pipe.pieces.put(end)

    threading.Thread(target=write, name="logitbench-export", daemon=True).start()
    try:
        while (piece := pipe.pieces.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            yield piece
    finally:
        pipe.leave()


class _Pipe(io.RawIOBase):
    """A file whose bytes another thread takes out of `pieces`; an exception or None is the last of them."""

    def __init__(self) -> None:
        self.pieces: queue.Queue[bytes | Exception | None] = queue.Queue(PIECES_AHEAD)
        self._is_left = False

    def writable(self) -> bool:
        """True: that is all it is for."""
        return True

    def write(self, data: Any) -> int:
        """Hand bytes over; raises BrokenPipeError where nobody takes them any more."""
        if self._is_left:
            raise BrokenPipeError("nobody reads this archive any more")
        piece = bytes(data)
        self.pieces.put(piece)
        return len(piece)

    def leave(self) -> None:
        """Take out nothing more; whoever waits to hand something over goes on, and fails the next time."""
        self._is_left = True
        with suppress(queue.Empty):
            while True:
                self.pieces.get_nowait()
