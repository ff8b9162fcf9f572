"""Model file tasks: download, quantise or synthesise models in the background, one at a time."""

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Literal

from engine.errors import ConfigError, ModelError
from engine.machine.cores import num_cores
from engine.models.catalogue import Entry, look_up
from engine.models.download import Download
from engine.models.gguf import ModelFile
from engine.models.places import find_places
from engine.models.quantisations import target_path
from engine.models.quantise import QuantiseJob
from engine.models.reading import read_model
from engine.models.shapes import shape_named
from engine.models.synthetic import weights_bytes, write_synthetic
from engine.models.uploaded import take_upload
from engine.runs import quantisation_in
from engine.settings import Settings
from engine.tasks import Task, TaskRunner
from engine.units import quantity
from engine.workbench.machine_lease import MachineLease

Kind = Literal["get", "quantise", "synthesise"]

Files = Download | Task[Path]


class FileTask(Task[tuple[Path, ...]]):
    """Task that downloads or makes one model; its result is the model's files.

    `prepare` returns the task that does the work; it is called in the background, as it may have to query the hub.
    """

    def __init__(self, kind: Kind, name: str, prepare: Callable[[], Files]) -> None:
        super().__init__(name, lambda _task: self._get())
        self.kind = kind
        self._prepare = prepare
        self._files: Files | None = None

    @property
    def can_discard(self) -> bool:
        """True where a download ended early, so that a partial file may be on disk."""
        return isinstance(self._files, Download) and self.error is not None

    def anew(self) -> "FileTask":
        """Return the same task anew, not started; a download resumes where it stopped."""
        return FileTask(self.kind, self.name, self._prepare)

    def discard(self) -> None:
        """Remove the partial files of a download that ended early. Raises DownloadError where that fails."""
        if self.can_discard and isinstance(self._files, Download):
            self._files.discard()

    def _get(self) -> tuple[Path, ...]:
        self.update(doing="starting")
        self._files = self._prepare()
        self.check()
        if isinstance(self._files, Download):
            return self.include(self._files)
        return (self.include(self._files),)


class ModelFiles:
    """Runner of model file tasks, one at a time, into the first model folder. Any thread may call it."""

    def __init__(self, settings: Settings, machine: MachineLease) -> None:
        self._settings, self._machine = settings, machine
        self._tasks = TaskRunner[FileTask]()

    @property
    def task(self) -> FileTask | None:
        """The running task, else the last one until `dismiss`."""
        return self._tasks.last

    def get(self, name: str, wanted: str = "", endpoint: str = "") -> None:
        """Download a model, named as in `engine.models.catalogue.look_up`.

        Raises ConfigError while another model is being downloaded or made, or a measurement is running; any other
        failure is the task's `error`.
        """

        def prepare() -> Download:
            repository, choice = look_up(name, wanted, endpoint)
            return Download(repository, choice.files, self._settings.models)

        self._start(FileTask("get", f"{name} {wanted}".strip(), prepare))

    def quantise(
        self, source: Path, type_name: str, *, imatrix: Path | None = None, may_requantise: bool = False
    ) -> None:
        """Quantise the model at `source` into the file at `quantisation_path`; options as in QuantiseJob.

        Raises as `get`, and ModelError.
        """
        target = quantisation_path(read_model(source), type_name, self._settings)

        def prepare() -> QuantiseJob:
            make_folder(target.parent)
            return QuantiseJob(
                read_model(source), type_name, target, threads=num_cores(), imatrix=imatrix,
                may_requantise=may_requantise,
            )  # fmt: skip

        self._start(FileTask("quantise", target.name, prepare))

    def synthesise(self, shape: str, quantisation: str) -> None:
        """Write a model of random weights in a shape of `engine.models.shapes`.

        Raises as `get`, and ConfigError where the file exists already.
        """
        path = self._settings.models / f"{shape}-{quantisation}.gguf"
        if path.exists():
            raise ConfigError(f"{path} already exists; the result would be identical.")
        self._start(FileTask("synthesise", path.name, lambda: _synthesis(shape, quantisation, path)))

    def add(self, name: str, file: BinaryIO) -> Path:
        """Copy an uploaded file into the first model folder and return its path; raises as `take_upload`."""
        make_folder(self._settings.models)
        return take_upload(name, file, self._settings.models)

    def kept(self, entry: Entry) -> Path | None:
        """Return the path of a downloaded model of the catalogue; None where it has not been downloaded."""
        folder = self._settings.models / entry.repository
        if not entry.quantisation:
            return folder if (folder / "modules.json").is_file() else None
        files = sorted(folder.rglob("*.gguf"))
        return next((path for path in files if quantisation_in(path.name) == entry.quantisation), None)

    def again(self) -> None:
        """Restart the task that was stopped or failed; a download resumes. Raises as `get`."""
        task = self.task
        if task is not None and not task.is_running:
            self._start(task.anew())

    def stop(self) -> None:
        """Stop the running task, if there is one."""
        self._tasks.stop()

    def dismiss(self, *, discard: bool = False) -> None:
        """Forget the last task.

        discard: also remove its partial files. Raises DownloadError where they cannot be removed.
        """
        task = self.task
        if task is not None and not task.is_running and discard:
            task.discard()
        self._tasks.dismiss()

    def close(self) -> None:
        """Stop the running task and wait for it to end."""
        self._tasks.close()

    def _start(self, task: FileTask) -> None:
        self._tasks.start(task, lambda: self._machine.acquire(task.name, "shared"))


def quantisation_path(source: ModelFile, type_name: str, settings: Settings) -> Path:
    """Return the path of a quantisation: in its model's folder, or in the first model folder.

    The latter where the model's folder belongs to another program or ships, since such folders are not modified.
    """
    others = [place.folder for place in find_places(settings) if not place.is_own]
    is_foreign = any(source.path.absolute().is_relative_to(folder) for folder in others)
    return target_path(source, type_name, settings.models if is_foreign else None)


def make_folder(folder: Path) -> None:
    """Create a folder for models where it does not exist. Raises ModelError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"{folder}: cannot be created ({error.strerror}); models are stored there.") from error


def _synthesis(shape: str, quantisation: str, path: Path) -> Task[Path]:
    """Return the task that writes a model of random weights. Raises ConfigError for an unknown shape or type."""
    total_bytes = weights_bytes(shape_named(shape), quantisation)

    def write(task: Task[Path]) -> Path:
        def tell(share: float) -> None:
            task.update(share, f"{quantity(round(share * total_bytes), 'B')} of {quantity(total_bytes, 'B')}")

        make_folder(path.parent)
        write_synthetic(shape, path, quantisation, progress=tell)
        return path

    return Task(path.name, write)
