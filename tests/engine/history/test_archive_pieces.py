"""Archive streamed in pieces: identical to the file, failures reported, and no writer left behind."""

import threading
from pathlib import Path

import pytest

from engine.errors import HistoryError
from engine.history import History, import_archive
from engine.history.archives import pieces
from engine.history.archives.pieces import PIECE_BYTES, ArchivePieces
from tests.engine.history.run_maker import make_run
from tests.waiting import until

PATIENCE_S = 60.0


def test_the_pieces_are_an_archive(history: History) -> None:
    runs = [make_run(3_000, 3), make_run(0, 1)]
    for run in runs:
        history.runs.keep(run)
    pieces = list(ArchivePieces(history, run_ids=[runs[0].id]))
    assert len(pieces) > 1 and max(map(len, pieces)) <= PIECE_BYTES
    history.runs.delete(runs[0].id)
    history.gc()
    assert import_archive(history, b"".join(pieces)).num_runs == 1
    found = history.runs.run(runs[0].id)
    assert found is not None and len(found.samples) == 3_000


def test_what_cannot_be_exported_is_reported(history: History) -> None:
    with pytest.raises(HistoryError, match="There is no run"):
        next(ArchivePieces(history, run_ids=["01a1fab9-91c7-7816-819a-8fcdffdfbaff"]))


def test_a_reader_that_leaves_ends_the_writing(history: History) -> None:
    history.runs.keep(make_run(60_000, 3))
    exported = ArchivePieces(history)
    next(exported)
    assert _writers()
    exported.close()
    until(lambda: not _writers(), "the archive is still written", PATIENCE_S)


def test_a_reader_that_leaves_at_once_is_no_defect(history: History, caplog: pytest.LogCaptureFixture) -> None:
    history.runs.keep(make_run(3, 1))
    for _ in range(20):
        ArchivePieces(history).close()
    until(lambda: not _writers(), "the archive is still written", PATIENCE_S)
    assert not caplog.records


def test_a_reader_that_takes_nothing_for_long_ends_the_writing(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "ABSENT_S", 0.3)
    history.runs.keep(make_run(60_000, 3))
    exported = ArchivePieces(history)
    until(lambda: not _writers(), "the archive is still written", PATIENCE_S)
    with pytest.raises(HistoryError, match="its reader has gone"):
        list(exported)


def test_the_end_of_the_history_ends_the_writing(path: Path) -> None:
    with History.open(path) as history:
        history.runs.keep(make_run(60_000, 3))
        exported = ArchivePieces(history)
        next(exported)
    until(lambda: not _writers(), "the archive is still written", PATIENCE_S)
    with pytest.raises(HistoryError):
        list(exported)
    with History.open(path) as history:  # the file was released
        assert len(history.runs.recent()) == 1


def _writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "logitbench-export"]
