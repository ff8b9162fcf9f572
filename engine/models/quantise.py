"""Quantisation of a model, as a task: in its own process, with progress and immediate stop."""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.errors import ConfigError, ModelError
from engine.files import SPARE_BYTES, check_utf8, named_path, open_partial
from engine.models.gguf import ModelFile
from engine.models.imatrix import read_imatrix
from engine.models.quantisations import TYPES, Offer, check_is_file, offer_of
from engine.models.quantise_program import QuantiseProgram, matrix_options
from engine.models.reading import read_model
from engine.tasks import Progress, Stopped, Task
from engine.units import quantity

_UNWRITTEN = "iostream error"
"""Message of the C++ library when writing a file fails."""


class QuantiseJob(Task[Path]):
    """Quantisation task: quantises `source` to the file `target`, which is its result.

    threads: of llama.cpp. imatrix: file of an importance matrix, which the types below 3 bits need. may_requantise:
    allow a source that is itself quantised, from which the result is worse than from the original. The target gets its
    name only when it is complete; no other file is touched. Raises ConfigError for a folder, an unknown type and an
    invalid target: the source itself, an existing file, a missing folder, a name that does not end in .gguf.
    """

    def __init__(
        self,
        source: ModelFile,
        type_name: str,
        target: str | Path,
        *,
        threads: int,
        imatrix: str | Path | None = None,
        may_requantise: bool = False,
    ) -> None:
        if type_name not in TYPES:
            raise ConfigError(f"type = {type_name!r}: must be one of {', '.join(TYPES)}")
        check_is_file(source)
        self.target = named_path(Path(target).parent) / Path(target).name  # a link is not followed
        super().__init__(self.target.name, lambda _task: self._make())
        self.source, self.type_name = source, type_name
        _check_target(source, self.target)
        self._threads = threads
        self._imatrix = Path(imatrix) if imatrix else None
        self._may_requantise = may_requantise
        self._partial = self.target.with_name(f".{self.target.name}.partial")

    def _make(self) -> Path:
        try:
            with _locked(self._partial, self.target), contextlib.closing(QuantiseProgram()) as program:
                self.on_stop(program.stop)
                self._write(program)
        except Exception as error:
            if self.is_stopped:
                raise Stopped(f"{self.target.name}: stopped. The partial file is removed.") from error
            raise
        return self.target

    def _write(self, program: QuantiseProgram) -> None:
        self.update(doing="calculating the size")
        options = self._options()
        offer = self._size(program, options)
        began = time.monotonic()
        self.follow(lambda: self._written(offer.num_bytes, began))
        answer = program.quantise(self.source.path, TYPES[self.type_name], target=str(self._partial), **options)
        self._check(answer)
        os.replace(self._partial, self.target)

    def _written(self, total_bytes: int, began: float) -> Progress:
        """Return the progress from the bytes written of the target, with the time left at this pace."""
        try:
            num_bytes = min(self._partial.stat().st_size, total_bytes)
        except OSError:  # it has been renamed already
            num_bytes = total_bytes
        left_s = (time.monotonic() - began) * (total_bytes / num_bytes - 1) if num_bytes else None
        doing = f"{quantity(num_bytes, 'B')} of {quantity(total_bytes, 'B')}"
        return Progress(num_bytes / total_bytes if total_bytes else 0.0, doing, left_s)

    def _options(self) -> dict[str, Any]:
        importances = read_imatrix(self._imatrix, self.source) if self._imatrix else ()
        return {
            "threads": self._threads,
            "may_requantise": self._may_requantise,
            **matrix_options(self._imatrix, importances),
        }

    def _size(self, program: QuantiseProgram, options: Mapping[str, Any]) -> Offer:
        """Return the offer for the target; raises ModelError where it is refused, or the disk has too little room."""
        check_utf8(self.source.path, ModelError)
        read_model(self.source.path)
        found = program.quantise(self.source.path, TYPES[self.type_name], **options)
        offer = offer_of(self.source, self.type_name, found, self._may_requantise)
        if offer.refusal:
            raise ModelError(f"{self.source.path}: cannot be quantised to {self.type_name}: {offer.refusal}")
        free = shutil.disk_usage(self.target.parent).free
        if free < offer.num_bytes + SPARE_BYTES:
            raise ModelError(
                f"{self.target.name} needs {quantity(offer.num_bytes, 'B')} on the disk of {self.target.parent}; "
                f"{quantity(free, 'B')} is free. Nothing was written. Free some space, or choose a smaller type."
            )
        return offer

    def _check(self, answer: Mapping[str, Any]) -> None:
        """Raise ModelError unless the file is complete; then flush it to the disk (fsync)."""
        reason = answer.get("failure", "")
        if not reason:
            try:
                read_model(self._partial)
            except ModelError:
                reason = _UNWRITTEN
        if reason:
            hint = f" The disk of {self.target.parent} may be full." if _UNWRITTEN in reason else ""
            raise ModelError(f"{self.target.name} could not be written ({reason}); the partial file is removed.{hint}")
        with self._partial.open("rb") as file:
            os.fsync(file.fileno())


def _check_target(source: ModelFile, target: Path) -> None:
    """Raise ConfigError for a target that would touch an existing file or cannot be created."""
    if target.suffix.lower() != ".gguf":
        raise ConfigError(f"target = {str(target)!r}: must end in .gguf to be found as a model")
    if not target.parent.is_dir():
        raise ConfigError(f"{target.parent}: there is no such folder; create it, or choose another for the target")
    if not target.exists():
        return
    if any(target.samefile(file) for file in source.files if file.exists()):
        raise ConfigError(f"{target}: is the source model itself; choose another target")
    raise ConfigError(f"{target}: already exists; choose another name, or remove it first")


@contextmanager
def _locked(partial: Path, target: Path) -> Iterator[None]:
    """Create and lock the partial file for this job alone; removed afterwards, unless it became the target."""
    try:
        with open_partial(partial) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ModelError(f"{target.name} is already being written; wait for that job, or stop it.") from error
            try:
                yield
            finally:
                partial.unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(f"{target}: cannot be written ({error.strerror})") from error
