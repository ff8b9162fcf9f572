"""The end of the owner: what reads is interrupted, what hangs is left behind, and the file is never shared."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.errors import HistoryError, HistoryLocked
from engine.history import History


def test_the_end_interrupts_what_reads(path: Path) -> None:
    history = History.open(path)
    began = threading.Event()

    def read() -> None:
        with history.file.reading() as cursor:
            began.set()
            cursor.execute("SELECT count(*) FROM range(1000000000000)").fetchall()

    with ThreadPoolExecutor(1) as reading:
        reader = reading.submit(read)
        assert began.wait(60)
        history.close()
        with pytest.raises(HistoryError, match="is being closed"):
            reader.result(60)
    History.open(path).close()


@pytest.mark.parametrize("does", ["writes", "reads"])
def test_the_end_leaves_what_hangs_and_keeps_the_lock(path: Path, does: str) -> None:
    history = History.open(path)
    over, began = threading.Event(), threading.Event()

    def read() -> None:
        with history.file.reading():
            began.set()
            over.wait(60)

    def write(_: object) -> None:
        began.set()
        over.wait(60)

    with ThreadPoolExecutor(1) as reading:
        waiting = history.file.write(write) if does == "writes" else reading.submit(read)
        assert began.wait(60)
        history.close(0.2)
        with pytest.raises(HistoryLocked):
            History.open(path)
        over.set()
        waiting.result(60)
