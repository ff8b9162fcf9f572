"""Import: a child process under limits reads foreign files; the history imports them from a staging folder."""

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from engine.errors import ConfigError, WorkerDied
from engine.exchange import import_program as program
from engine.exchange.foreign_files import LABELS, Kind
from engine.exchange.text_files import TextSet
from engine.files import check_utf8
from engine.history import History, Imported
from engine.history.archives.intake import take_in_staged
from engine.process.limits import Limits
from engine.process.program import Service
from engine.units import counted

FOLDER = "imports"
"""Subfolder of the home folder for files being imported; they are removed afterwards."""

LIMITS = Limits(memory_bytes=3 << 30, cpu_s=120, file_bytes=32 << 30)
"""Limits of the child process; the program itself uses 0.5 GiB of address space, most of it untouched."""

LOOK_S, READ_S = 60.0, 180.0
"""Time limits of a preview and of one step of an import; the largest allowed file takes about a quarter of them."""

_POLL_S = 0.1


class Recognised(NamedTuple):
    """Recognised file: its kind, with a label in words, its number of rows, and the first rows as a preview."""

    kind: Kind
    label: str
    num: int
    preview: list[dict[str, Any]]


class Taken(NamedTuple):
    """Result of an import: ids of the file's runs and trials (of an archive, only the new ones), and a sentence."""

    kind: Kind
    run_ids: tuple[str, ...]
    trial_ids: tuple[str, ...]
    sentence: str


class Importer:
    """Importer of files and pasted text, read in one child process that starts on first use. Any thread may call it.

    Raises ConfigError or HistoryError, with the reason, for unreadable files, and LimitExceeded for those that take
    too much time or memory.
    """

    def __init__(self, home: Path) -> None:
        self._folder = home / FOLDER
        self._lock = threading.Lock()
        self._service: Service | None = None
        self._is_closed = False
        self._asking = ThreadPoolExecutor(1, "logitbench-import")
        self._staging = threading.Lock()  # the child process stages one file at a time

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def recognise(self, name: str, data: bytes | Path) -> Recognised:
        """Recognise and preview a file or pasted text without storing anything."""
        with self._file(data) as path:
            found: program.Looked = self._ask(program.Look(name, str(path)), LOOK_S, name)
        return Recognised(found.kind, LABELS[found.kind], found.num, found.rows)

    def take_in(
        self,
        history: History,
        name: str,
        data: bytes | Path,
        on_progress: Callable[[float], object] = lambda _share: None,
    ) -> Taken:
        """Import a file: records already present stay unchanged, and deleted ones are restored.

        A record without an id gets one derived from its content, so that importing the same file twice gives one run.
        So does a trial of a trial's file whose id belongs to a trial with other content. `on_progress` gets 0 to 1; an
        exception from it ends the import with nothing stored. Raises HistoryError where the history accepts no more.
        """
        with self._file(data) as path, tempfile.TemporaryDirectory(dir=self._folder) as folder:
            while not self._staging.acquire(timeout=_POLL_S):
                on_progress(0.0)
            try:
                staged = self._staged(program.Stage(name, str(path), folder), on_progress)
            finally:
                self._staging.release()
            # Of other kinds the id is made of the file's content, though its name is part of the trial.
            has_own_ids = staged.kind in ("trial", "trials")
            taken = take_in_staged(
                history, Path(folder), name, lambda share: on_progress((1 + share) / 2), keeps_both=has_own_ids
            )
        is_archive = staged.kind == "archive"
        return Taken(
            staged.kind,
            taken.run_ids if is_archive else tuple(staged.run_ids),
            taken.trial_ids if is_archive else tuple(taken.new_ids.get(id, id) for id in staged.trial_ids),
            _summary(taken),
        )

    def hand_over(self, name: str, path: Path, inbox: Path) -> Kind:
        """Write a file's runs and trials to the inbox of the process that owns the history, except an archive's.

        Returns the kind of the file.
        """
        with self._file(path) as file:
            found: program.HandedOver = self._ask(program.HandOver(name, str(file), str(inbox)), READ_S, name)
        return found.kind

    def stage_kept(self, path: Path, folder: Path) -> None:
        """Write the trial or run of an inbox file to a staging folder, see `inbox.stage_kept`."""
        self._ask(program.StageKept(str(path), str(folder)), LOOK_S, path.name)

    def read_texts(self, name: str, data: bytes, *, column: str | None = None, most: int | None = None) -> TextSet:
        """Read the texts of a file, see `text_files.read_texts`."""
        with self._file(data) as path:
            answer: program.Texts = self._ask(program.ReadTexts(name, str(path), column, most), LOOK_S, name)
        return answer.found

    def warm(self) -> None:
        """Start the child process in advance, so that the first file need not wait for it."""
        with self._lock:
            if self._service is None:
                if self._is_closed:
                    raise WorkerDied("no more files are read: this workbench is closing")
                self._service = Service(program.__name__, does="reads files", answers=program.Answer, limits=LIMITS)

    def close(self) -> None:
        """End the child process. Safe to call twice."""
        with self._lock:
            self._is_closed = True
            if self._service is not None:
                self._service.close()
        self._asking.shutdown(wait=False)

    def _staged(self, request: program.Stage, on_progress: Callable[[float], object]) -> program.StagedFile:
        """Stage a file in the child process; an exception from `on_progress` ends the child and is raised."""
        share = 0.0
        asked: program.Request = request
        while True:
            future = self._asking.submit(self._ask, asked, READ_S, request.name)
            while not wait([future], _POLL_S).done:
                self._progress(on_progress, share)
            answer: program.Share | program.StagedFile = future.result()
            if isinstance(answer, program.StagedFile):
                return answer
            share, asked = answer.share / 2, program.GoOn()
            self._progress(on_progress, share)

    def _progress(self, on_progress: Callable[[float], object], share: float) -> None:
        try:
            on_progress(share)
        except BaseException:
            with self._lock:
                if self._service is not None:
                    self._service.stop()
            raise

    def _ask(self, request: program.Request, deadline_s: float, name: str) -> Any:
        self.warm()
        assert self._service is not None
        return self._service.ask(request, deadline_s, about=name)

    @contextmanager
    def _file(self, data: bytes | Path) -> Iterator[Path]:
        """Yield the path of the data to read; data in memory is written to a temporary file."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if isinstance(data, Path):
                path = data.absolute()
                check_utf8(path, ConfigError)
            else:
                handle, name = tempfile.mkstemp(dir=self._folder)
                path = Path(name)
                with open(handle, "wb") as file:
                    file.write(data)
        except OSError as error:
            raise ConfigError(
                f"The file could not be copied to {self._folder} for reading: {error}. Free some space there."
            ) from error
        try:
            yield path
        finally:
            if not isinstance(data, Path):
                path.unlink(missing_ok=True)


def remove_leftovers(home: Path) -> None:
    """Remove the files of a killed import; only the process that owns the home folder may call this."""
    shutil.rmtree(home / FOLDER, ignore_errors=True)


def _summary(taken: Imported) -> str:
    counts = ((taken.num_runs, "run"), (taken.num_trials, "trial"))
    kept = [counted(num, noun) for num, noun in counts if num]
    parts = [f"{' and '.join(kept)} imported"] if kept else []
    if num_changed := len({*taken.new_ids.values()} & {*taken.trial_ids}):
        whose = "its id belongs to another trial" if num_changed == 1 else "their ids belong to other trials"
        parts.append(f"{num_changed:,} of them under a new id, as {whose} here")
    if taken.num_known:
        parts.append(f"{taken.num_known:,} {'was' if taken.num_known == 1 else 'were'} already present")
    return f"{'; '.join(parts) or 'It contains no runs or trials'}."
