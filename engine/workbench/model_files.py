"""The one model that is fetched or made at a time, beside whatever else a workbench does."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from engine.errors import ConfigError, EngineError, ModelError
from engine.models.catalogue import Entry, look_up
from engine.models.download import Download
from engine.models.gguf import ModelFile, read_model
from engine.models.places import find_places
from engine.models.quantisations import target_path
from engine.models.quantise import Progress as MakingProgress
from engine.models.quantise import QuantiseJob
from engine.models.shapes import shape_named
from engine.models.synthetic import weights_bytes, write_synthetic
from engine.models.work import Progress, Work
from engine.pool.placement import num_cores
from engine.runs import quantisation_in
from engine.settings import Settings

Kind = Literal["get", "quantise", "synthesise"]

Files = Work[Path] | Work[tuple[Path, ...]]

_ENDS_WITHIN_S = 20.0


class FileTask:
    """One model being fetched or made, in a thread of its own. Any thread may look at it.

    paths: the files that came of it. error: why it ended without any, also after `cancel`.
    """

    def __init__(self, kind: Kind, name: str, prepare: Callable[[], Files]) -> None:
        self.kind, self.name = kind, name
        self.paths: tuple[Path, ...] = ()
        self.error: EngineError | None = None
        self.is_stopped = False
        self._prepare = prepare
        self._work: Files | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()

    @property
    def is_running(self) -> bool:
        """False once it has ended, in whatever way."""
        return not self._ended.is_set()

    @property
    def progress(self) -> Progress:
        """How far it is; its state is "waiting" while the hub is asked what there is."""
        work = self._work
        return work.progress if work is not None else MakingProgress("waiting")

    @property
    def can_discard(self) -> bool:
        """True where a download ended early, so that part of it may lie on the disk."""
        return isinstance(self._work, Download) and self.error is not None

    def start(self) -> None:
        """Begin; once for each object."""
        threading.Thread(target=self._run, name="logitbench-files", daemon=True).start()

    def cancel(self) -> None:
        """End it; returns at once."""
        with self._lock:
            self.is_stopped = True
            if self._work is not None:
                self._work.cancel()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end."""
        self._ended.wait(timeout_s)

    def anew(self) -> "FileTask":
        """The same once more, not begun; a download goes on where it stopped."""
        return FileTask(self.kind, self.name, self._prepare)

    def discard(self) -> None:
        """Remove what had come of a download that ended early. Raises DownloadError where it cannot be removed."""
        if self.can_discard and isinstance(self._work, Download):
            self._work.discard()

    def _run(self) -> None:
        try:
            work = self._prepare()
            with self._lock:
                if self.is_stopped:
                    raise ConfigError(f"{self.name}: stopped before anything was fetched.")
                self._work = work
            work.start()
            made = work.result()
            self.paths = made if isinstance(made, tuple) else (made,)
        except EngineError as error:
            self.error = error
        except Exception as defect:
            self.error = ModelError(f"{self.name}: ended through a defect of this program: {defect!r}.")
            raise
        finally:
            self._ended.set()


class ModelFiles:
    """Fetches or makes one model at a time, into the first folder of models. Any thread may call it."""

    def __init__(self, settings: Settings, is_measuring: Callable[[], bool]) -> None:
        self._settings, self._is_measuring = settings, is_measuring
        self._lock = threading.Lock()
        self._task: FileTask | None = None

    @property
    def task(self) -> FileTask | None:
        """What is being done, else what was done last, until `dismiss`."""
        return self._task

    @property
    def doing(self) -> str:
        """The name of the model that is being fetched or made; empty where none is."""
        task = self._task
        return task.name if task is not None and task.is_running else ""

    def get(self, name: str, wanted: str = "", endpoint: str = "") -> None:
        """Fetch a model, named as `engine.models.catalogue.look_up` takes it. Raises ConfigError where one is being
        fetched or made already, and while a benchmark measures; what else goes wrong is the task's `error`."""

        def prepare() -> Download:
            repository, choice = look_up(name, wanted, endpoint)
            return Download(repository, choice.files, self._settings.models)

        self._start(FileTask("get", f"{name} {wanted}".strip(), prepare))

    def quantise(
        self, source: Path, type_name: str, *, imatrix: Path | None = None, may_requantise: bool = False
    ) -> None:
        """Make a quantisation of the model at `source`, kept at `quantisation_path`; options as of QuantiseJob. Raises
        as `get`, and ModelError."""
        target = quantisation_path(read_model(source), type_name, self._settings)

        def prepare() -> QuantiseJob:
            make_folder(target.parent)
            return QuantiseJob(
                read_model(source), type_name, target, threads=num_cores(), imatrix=imatrix,
                may_requantise=may_requantise,
            )  # fmt: skip

        self._start(FileTask("quantise", target.name, prepare))

    def synthesise(self, shape: str, quantisation: str) -> None:
        """Write a model of random weights in a shape of `engine.models.shapes`. Raises as `get`, and ConfigError where
        it is there."""
        path = self._settings.models / f"{shape}-{quantisation}.gguf"
        if path.exists():
            raise ConfigError(f"{path} is here already; it would come out the same.")
        self._start(FileTask("synthesise", path.name, lambda: _Synthesis(shape, quantisation, path)))

    def kept(self, entry: Entry) -> Path | None:
        """Where a model of the catalogue lies that was fetched before; None where it was not."""
        folder = self._settings.models / entry.repository
        if not entry.quantisation:
            return folder if (folder / "modules.json").is_file() else None
        files = sorted(folder.rglob("*.gguf"))
        return next((path for path in files if quantisation_in(path.name) == entry.quantisation), None)

    def again(self) -> None:
        """Begin anew what was stopped or failed; a download goes on where it was. Raises as `get`."""
        task = self._task
        if task is not None and not task.is_running:
            self._start(task.anew())

    def cancel(self) -> None:
        """End what is being done; nothing happens where nothing is."""
        task = self._task
        if task is not None:
            task.cancel()

    def dismiss(self, *, discard: bool = False) -> None:
        """Forget what was done last; `discard`: with what had come of it. Raises DownloadError where that stays."""
        task = self._task
        if task is None or task.is_running:
            return
        if discard:
            task.discard()
        self._task = None

    def close(self) -> None:
        """End what is being done, and wait for that."""
        self.cancel()
        task = self._task
        if task is not None:
            task.wait(_ENDS_WITHIN_S)

    def _start(self, task: FileTask) -> None:
        with self._lock:
            if self._is_measuring():
                raise ConfigError(
                    "A benchmark is measuring and has the machine to itself. Wait for it, or stop it, then try again."
                )
            if self.doing:
                raise ConfigError(f"{self.doing} is not done yet, and one is done at a time. Wait for it, or stop it.")
            self._task = task
            task.start()


def quantisation_path(source: ModelFile, type_name: str, settings: Settings) -> Path:
    """Where a quantisation is kept: beside its model, but in the first folder of models where that belongs to another
    program or ships, since such folders are left as they are."""
    others = [place.folder for place in find_places(settings) if not place.is_own]
    is_foreign = any(source.path.absolute().is_relative_to(folder) for folder in others)
    return target_path(source, type_name, settings.models if is_foreign else None)


def make_folder(folder: Path) -> None:
    """Make a folder that models are kept in, where it is not there. Raises ModelError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"{folder}: cannot be made ({error.strerror}); models are kept there.") from error


class _Synthesis:
    """Writes a model of random weights; `result` does the work."""

    def __init__(self, shape: str, quantisation: str, path: Path) -> None:
        self.progress = MakingProgress("waiting")
        self._shape, self._quantisation, self._path = shape, quantisation, path
        self._total_bytes = weights_bytes(shape_named(shape), quantisation)
        self._stop = threading.Event()
        self._began = time.monotonic()

    def start(self) -> None:
        make_folder(self._path.parent)

    def cancel(self) -> None:
        self._stop.set()

    def result(self, timeout: float | None = None) -> Path:
        write_synthetic(self._shape, self._path, self._quantisation, progress=self._tell)
        return self._path

    def _tell(self, share: float) -> None:
        if self._stop.is_set():
            raise ModelError(f"{self._path.name}: stopped. What was written of it is removed.")
        num_bytes = round(share * self._total_bytes)
        self.progress = MakingProgress("writing", num_bytes, self._total_bytes, time.monotonic() - self._began)
