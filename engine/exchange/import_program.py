"""Import process: reads foreign files in a process of its own, within limits, and reports their contents.

Data to be stored is written to a staging folder in steps of a quarter of a second, so that the parent receives progress
reports. A hostile file can exhaust only this process's memory.
"""

import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from engine.errors import EngineError, HistoryError
from engine.exchange.foreign_files import Kind, is_archive, read_arrival
from engine.exchange.text_files import TextSet, read_texts
from engine.files import read_regular
from engine.history import TrialRecord, stage_kept, write_inbox
from engine.history.archives.members import telling
from engine.history.archives.reading import stage_archive
from engine.history.archives.staging import StagingWriter
from engine.process.channel import Message
from engine.process.serving import serve
from engine.runs import RunRecord

PREVIEWED = 50
LONGEST_SHOWN = 500
_AT_ONCE_S = 0.25
_log = logging.getLogger(__name__)


class Look(Message, frozen=True):
    """Request: recognise a file."""

    name: str
    path: str


class Looked(Message, frozen=True):
    """Answer to Look: the kind of a file, its number of rows, and the first of them."""

    kind: Kind
    num: int
    rows: list[dict[str, bool | int | float | str | None]]


class Stage(Message, frozen=True):
    """Request: write a file's contents to the staging folder; GoOn requests follow until the answer is StagedFile."""

    name: str
    path: str
    folder: str


class GoOn(Message, frozen=True):
    """Request: continue the staging in progress."""


class Share(Message, frozen=True):
    """Answer: progress of the staging, 0 to 1."""

    share: float


class StagedFile(Message, frozen=True):
    """Answer: contents of the finished staging folder; for an archive, without the ids."""

    kind: Kind
    run_ids: list[str]
    trial_ids: list[str]


class StageKept(Message, frozen=True):
    """Request: write the contents of an inbox file to the staging folder."""

    path: str
    folder: str


class StagedKept(Message, frozen=True):
    """Answer to StageKept: staging is finished."""


class HandOver(Message, frozen=True):
    """Request: write a file's runs and trials to an inbox; nothing is written for an archive."""

    name: str
    path: str
    inbox: str


class HandedOver(Message, frozen=True):
    """Answer to HandOver: the kind of the file."""

    kind: Kind


class ReadTexts(Message, frozen=True):
    """Request: read the texts of a file, see `text_files.read_texts`."""

    name: str
    path: str
    column: str | None
    most: int | None


class Texts(Message, frozen=True):
    """Answer to ReadTexts: the texts of a file."""

    found: TextSet


Request = Look | Stage | GoOn | StageKept | HandOver | ReadTexts
Answer = Looked | Share | StagedFile | StagedKept | HandedOver | Texts


def main(end: socket.socket) -> None:
    """Serve requests of the parent process until it closes the connection."""
    reader = _Reader()
    serve(end, Request, reader.answer, is_idle=lambda: not reader.is_staging)


class _Reader:
    """Handler of requests; holds the state of the staging in progress."""

    def __init__(self) -> None:
        self._staging: Iterator[Share | StagedFile] = iter(())
        self.is_staging = False
        """True from the first step of a file's staging until the last one, or until it fails."""

    def answer(self, request: Request) -> Answer:
        """Answer one request. Raises EngineError where the file cannot be read."""
        try:
            return self._answer(request)
        except (EngineError, MemoryError, RecursionError):
            raise
        except Exception as error:
            _log.exception("unexpected error while reading a file")
            name = getattr(request, "name", "The file")
            raise HistoryError(
                f"{name} cannot be read: its content is malformed ({type(error).__name__}). "
                "Nothing was imported; export it again from its source."
            ) from error

    def _answer(self, request: Request) -> Answer:
        match request:
            case Look():
                return _looked(request)
            case Stage():
                self._staging = _stage(request)
            case StageKept():
                stage_kept(Path(request.path), Path(request.folder))
                return StagedKept()
            case HandOver():
                return _hand_over(request)
            case ReadTexts():
                data = read_regular(Path(request.path))
                return Texts(read_texts(request.name, data, column=request.column, most=request.most))
        return self._go_on()

    def _go_on(self) -> Share | StagedFile:
        end = time.monotonic() + _AT_ONCE_S
        self.is_staging = False
        for reached in self._staging:
            if isinstance(reached, StagedFile) or time.monotonic() > end:
                self.is_staging = isinstance(reached, Share)
                return reached
        raise HistoryError("The import was interrupted: the process that read the file ended. Try again.")


def _looked(request: Look) -> Looked:
    arrival = read_arrival(request.name, Path(request.path))
    rows = [{name: _shown(value) for name, value in row.items()} for row in arrival.rows[:PREVIEWED]]
    return Looked(arrival.kind, arrival.num, rows)


def _shown(value: object) -> bool | int | float | str | None:
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)[:LONGEST_SHOWN]


def _stage(request: Stage) -> Iterator[Share | StagedFile]:
    path = Path(request.path)
    arrival = None if is_archive(path) else read_arrival(request.name, path)
    with telling(request.name), StagingWriter(Path(request.folder)) as writer:
        if arrival is None:
            for share in stage_archive(path, writer):
                yield Share(share)
            kind: Kind = "archive"
        else:
            for run in arrival.runs:
                writer.add_run(run)
                yield Share(0.5)
            for trial in arrival.trials:
                writer.add_trial(trial)
                yield Share(0.5)
            kind = arrival.kind
    yield StagedFile(kind, writer.run_ids, writer.trial_ids)


def _hand_over(request: HandOver) -> HandedOver:
    arrival = read_arrival(request.name, Path(request.path))
    arrived: list[RunRecord | TrialRecord] = [*arrival.runs, *arrival.trials]
    for kept in arrived:
        write_inbox(Path(request.inbox), kept)
    return HandedOver(arrival.kind)
