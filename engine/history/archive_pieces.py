"""An archive piece by piece while it is written, for a download: it never lies whole in memory, nor on this disk."""

import os
import threading
from collections.abc import Iterable, Iterator

from engine.history.archive import export_history
from engine.history.store import History

PIECE_BYTES = 1 << 18


def archive_in_pieces(
    history: History, *, run_ids: Iterable[str] | None = None, trial_ids: Iterable[str] | None = None
) -> Iterator[bytes]:
    """The bytes of `export_history`, which runs in a thread of its own; closing the iterator ends it.

    It waits where the reader is behind. Raises HistoryError as that does, where the writing fails in the middle too.
    """
    source, sink = os.pipe()
    failures: list[Exception] = []

    def write() -> None:
        try:
            with open(sink, "wb", PIECE_BYTES) as file:
                export_history(history, file, run_ids=run_ids, trial_ids=trial_ids)
        except Exception as error:
            failures.append(error)

    writer = threading.Thread(target=write, name="logitbench-export", daemon=True)
    writer.start()
    with open(source, "rb", PIECE_BYTES) as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
    writer.join()
    if failures:
        raise failures[0]
