"""The program that reads foreign files in a process of its own, within limits, and says what is in them.

What is to be kept goes into a staging folder, a quarter of a second's work at a time, so that the parent hears how far
it is. Memory that a hostile file would take is this process's alone.
"""

import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from engine.errors import EngineError, HistoryError
from engine.history import TrialRecord, write_inbox
from engine.history.archive_members import telling
from engine.history.archive_reading import stage_archive
from engine.history.staging import StagingWriter
from engine.process.channel import Message
from engine.process.serving import serve
from engine.runs import RunRecord
from engine.workbench.foreign_files import Kind, is_archive, read_arrival
from engine.workbench.text_files import TextSet, read_texts

PREVIEWED = 50
LONGEST_SHOWN = 500
_AT_ONCE_S = 0.25
_log = logging.getLogger(__name__)


class Look(Message, frozen=True):
    """Asks what a file is."""

    name: str
    path: str


class Looked(Message, frozen=True):
    """What a file is, how many rows it has, and the first of them."""

    kind: Kind
    num: int
    rows: list[dict[str, bool | int | float | str | None]]


class Stage(Message, frozen=True):
    """Asks for what a file holds in the staging folder; the next requests are GoOn until it is Staged."""

    name: str
    path: str
    folder: str


class GoOn(Message, frozen=True):
    """Asks for more of what was begun."""


class Share(Message, frozen=True):
    """How far it is, 0 to 1."""

    share: float


class StagedFile(Message, frozen=True):
    """What lies in the staging folder now; of an archive without the ids."""

    kind: Kind
    run_ids: list[str]
    trial_ids: list[str]


class HandOver(Message, frozen=True):
    """Asks for the runs and trials of a file as files of an inbox; an archive is left alone."""

    name: str
    path: str
    inbox: str


class HandedOver(Message, frozen=True):
    """What the file was."""

    kind: Kind


class ReadTexts(Message, frozen=True):
    """Asks for the texts of a file, see `text_files.read_texts`."""

    name: str
    path: str
    column: str | None
    most: int | None


class Texts(Message, frozen=True):
    """The texts of a file."""

    found: TextSet


Request = Look | Stage | GoOn | HandOver | ReadTexts
Answer = Looked | Share | StagedFile | HandedOver | Texts


def main(end: socket.socket) -> None:
    """Serve the parent until it hangs up."""
    serve(end, Request, _Reader().answer)


class _Reader:
    """Answers requests; of one that is being staged it keeps how far it is."""

    def __init__(self) -> None:
        self._staging: Iterator[Share | StagedFile] = iter(())

    def answer(self, request: Request) -> Answer:
        """The answer to one request; raises EngineError where the file cannot be read."""
        try:
            return self._answer(request)
        except (EngineError, MemoryError, RecursionError):
            raise
        except Exception as error:
            _log.exception("not expected of a file")
            name = getattr(request, "name", "The file")
            raise HistoryError(
                f"{name} cannot be read: something in it is not as files of its kind have it ({type(error).__name__}). "
                "Nothing of it was kept; export it again where it came from."
            ) from error

    def _answer(self, request: Request) -> Answer:
        match request:
            case Look():
                return _looked(request)
            case Stage():
                self._staging = _stage(request)
            case HandOver():
                return _hand_over(request)
            case ReadTexts():
                data = Path(request.path).read_bytes()
                return Texts(read_texts(request.name, data, column=request.column, most=request.most))
        return self._go_on()

    def _go_on(self) -> Share | StagedFile:
        end = time.monotonic() + _AT_ONCE_S
        for reached in self._staging:
            if isinstance(reached, StagedFile) or time.monotonic() > end:
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
    with telling(request.name), StagingWriter(Path(request.folder)) as writer:
        if is_archive(path):
            for share in stage_archive(path, writer):
                yield Share(share)
            kind: Kind = "archive"
        else:
            arrival = read_arrival(request.name, path)
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
