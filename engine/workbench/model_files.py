"""Model files that are fetched or made, one at a time, beside whatever else a workbench does."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from engine.errors import ConfigError, ModelError
from engine.models.catalogue import Entry, look_up
from engine.models.download import Download
from engine.models.gguf import ModelFile, read_model
from engine.models.places import find_places
from engine.models.quantisations import target_path
from engine.models.quantise import QuantiseJob
from engine.models.shapes import shape_named
from engine.models.synthetic import weights_bytes, write_synthetic
from engine.pool.placement import num_cores
from engine.runs import quantisation_in
from engine.settings import Settings
from engine.tasks import Task, TaskRunner
from engine.units import quantity
from engine.workbench.machine_lease import MachineLease

Kind = Literal["get", "quantise", "synthesise"]

Files = Download | Task[Path]


class FileTask(Task[tuple[Path, ...]]):
    """Download or making of one model: its files.

    `prepare` gives the task that does it; in the background, as it may have to ask the hub what there is.
    """

    def __init__(self, kind: Kind, name: str, prepare: Callable[[], Files]) -> None:
        super().__init__(name, lambda _task: self._get())
        self.kind = kind
        self._prepare = prepare
        self._files: Files | None = None

    @property
    def can_discard(self) -> bool:
        """True where a download ended early, so that part of it may lie on the disk."""
        return isinstance(self._files, Download) and self.error is not None

    def anew(self) -> "FileTask":
        """The same once more, not begun; a download goes on where it stopped."""
        return FileTask(self.kind, self.name, self._prepare)

    def discard(self) -> None:
        """Remove what had come of a download that ended early. Raises DownloadError where it cannot be removed."""
        if self.can_discard and isinstance(self._files, Download):
            self._files.discard()

    def _get(self) -> tuple[Path, ...]:
        self.update(doing="beginning")
        self._files = self._prepare()
        self.check()
        if isinstance(self._files, Download):
            return self.include(self._files)
        return (self.include(self._files),)


class ModelFiles:
    """Fetches or makes one model at a time, into the first folder of models. Any thread may call it."""

    def __init__(self, settings: Settings, machine: MachineLease) -> None:
        self._settings, self._machine = settings, machine
        self._tasks = TaskRunner[FileTask]()

    @property
    def task(self) -> FileTask | None:
        """What is being done, else what was done last, until `dismiss`."""
        return self._tasks.last

    def get(self, name: str, wanted: str = "", endpoint: str = "") -> None:
        """Fetch a model, named as `engine.models.catalogue.look_up` takes it. Raises ConfigError where one is being
        fetched or made already, and while something is measured; what else goes wrong is the task's `error`."""

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
        self._start(FileTask("synthesise", path.name, lambda: _synthesis(shape, quantisation, path)))

    def kept(self, entry: Entry) -> Path | None:
        """Where a model of the catalogue lies that was fetched before; None where it was not."""
        folder = self._settings.models / entry.repository
        if not entry.quantisation:
            return folder if (folder / "modules.json").is_file() else None
        files = sorted(folder.rglob("*.gguf"))
        return next((path for path in files if quantisation_in(path.name) == entry.quantisation), None)

    def again(self) -> None:
        """Begin anew what was stopped or failed; a download goes on where it was. Raises as `get`."""
        task = self.task
        if task is not None and not task.is_running:
            self._start(task.anew())

    def stop(self) -> None:
        """End what is being done; nothing happens where nothing is."""
        self._tasks.stop()

    def dismiss(self, *, discard: bool = False) -> None:
        """Forget what was done last; `discard`: with what had come of it. Raises DownloadError where that stays."""
        task = self.task
        if task is not None and not task.is_running and discard:
            task.discard()
        self._tasks.dismiss()

    def close(self) -> None:
        """End what is being done, and wait for that."""
        self._tasks.close()

    def _start(self, task: FileTask) -> None:
        self._tasks.start(task, lambda: self._machine.acquire(task.name, "shared"))


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


def _synthesis(shape: str, quantisation: str, path: Path) -> Task[Path]:
    """The writing of a model of random weights. Raises ConfigError for a shape or type that there is not."""
    total_bytes = weights_bytes(shape_named(shape), quantisation)

    def write(task: Task[Path]) -> Path:
        def tell(share: float) -> None:
            task.update(share, f"{quantity(round(share * total_bytes), 'B')} of {quantity(total_bytes, 'B')}")

        make_folder(path.parent)
        write_synthetic(shape, path, quantisation, progress=tell)
        return path

    return Task(path.name, write)
