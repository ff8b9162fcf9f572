"""Makes a quantisation of a model, beside whatever else runs: with progress, and stopped at once."""

import contextlib
import fcntl
import math
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from engine.errors import ConfigError, EngineError, JobTimeout, ModelError
from engine.models.gguf import ModelFile, read_model
from engine.models.imatrix import read_imatrix
from engine.models.quantisations import TYPES, Offer, offer_of
from engine.models.quantise_program import QuantiseProgram, told_of
from engine.units import quantity

State = Literal["waiting", "sizing", "writing", "checking", "done", "stopped", "failed"]

SPARE_BYTES = 64 << 20
"""Room that is left on the disk."""

_UNWRITTEN = "iostream error"
"""What the C++ library says when a file cannot be written on."""


class Progress(NamedTuple):
    """How far quantising is. total_bytes: 0 until it is known; elapsed_s: since writing began."""

    state: State
    num_bytes: int = 0
    total_bytes: int = 0
    elapsed_s: float = 0.0

    @property
    def share(self) -> float:
        """0 to 1."""
        return min(self.num_bytes / self.total_bytes, 1.0) if self.total_bytes else 0.0

    @property
    def left_s(self) -> float:
        """Seconds until all is written, at the pace so far; NaN where it is not known."""
        return self.elapsed_s * (1 / self.share - 1) if self.share else math.nan


class QuantiseJob:
    """One quantisation being made, by a process of its own. Any thread may call it.

    threads: of llama.cpp. imatrix: file of an importance matrix, which the types below 3 bits need. may_requantise:
    also where the source is quantised itself, from which the result is worse than from the original.
    The target gets its name only when it is whole; no other file is touched. Raises ConfigError for an unknown type
    and for a target that cannot be one: the source itself, a file that exists, a folder that does not.
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
        self.source, self.type_name = source, type_name
        self.target = Path(target).expanduser().absolute()
        _check_target(source, self.target)
        self._threads = threads
        self._imatrix = Path(imatrix) if imatrix else None
        self._may_requantise = may_requantise
        self._partial = self.target.with_name(f".{self.target.name}.partial")
        self._thread = threading.Thread(target=self._run, name="logitbench-quantise", daemon=True)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._program: QuantiseProgram | None = None
        self._is_stopped = False
        self._error: Exception | None = None
        self._state: State = "waiting"
        self._total_bytes = 0
        self._began = 0.0

    def start(self) -> Self:
        """Begin; once for each object."""
        self._thread.start()
        return self

    def cancel(self) -> None:
        """Stop at once; what was written is removed."""
        with self._lock:
            self._is_stopped = True
            if self._program is not None:
                self._program.stop()

    def result(self, timeout: float | None = None) -> Path:
        """Wait for the end: the target. Raises the EngineError that ended it, also after `cancel`, and JobTimeout when
        it goes on for longer than `timeout` seconds."""
        if not self._over.wait(timeout):
            raise JobTimeout(f"{self.target.name} was not made in {timeout:g} s; quantising goes on.")
        if self._error is not None:
            raise self._error
        return self.target

    @property
    def progress(self) -> Progress:
        """How far it is now."""
        if self._state == "done":
            return Progress("done", self._total_bytes, self._total_bytes)
        if self._state not in ("writing", "checking"):
            return Progress(self._state, 0, self._total_bytes)
        with contextlib.suppress(OSError):
            return Progress(
                self._state, self._partial.stat().st_size, self._total_bytes, time.monotonic() - self._began
            )
        return Progress(self._state, self._total_bytes, self._total_bytes)

    def _run(self) -> None:
        try:
            with _locked(self._partial, self.target), contextlib.closing(self._start()) as program:
                options = self._options()
                offer = self._size(program, options)
                self._total_bytes, self._began, self._state = offer.num_bytes, time.monotonic(), "writing"
                answer = program.quantise(self.source.path, TYPES[self.type_name], target=str(self._partial), **options)
                self._state = "checking"
                self._check(answer)
                os.replace(self._partial, self.target)
            self._state = "done"
        except Exception as error:
            self._error = error
            if self._is_stopped:
                self._error = _Stopped(f"{self.target.name}: stopped. What was written of it is removed.")
            self._state = "stopped" if self._is_stopped else "failed"
        finally:
            self._over.set()

    def _start(self) -> QuantiseProgram:
        with self._lock:
            if self._is_stopped:
                raise _Stopped
            self._program = QuantiseProgram()
            self._state = "sizing"
            return self._program

    def _options(self) -> dict[str, Any]:
        importances = read_imatrix(self._imatrix, self.source) if self._imatrix else ()
        return {
            "threads": self._threads,
            "may_requantise": self._may_requantise,
            **told_of(self._imatrix, importances),
        }

    def _size(self, program: QuantiseProgram, options: Mapping[str, Any]) -> Offer:
        """What will be made; raises ModelError where it cannot be, or the disk has no room for it."""
        read_model(self.source.path)
        found = program.quantise(self.source.path, TYPES[self.type_name], **options)
        offer = offer_of(self.source, self.type_name, found, self._may_requantise)
        if offer.refusal:
            raise ModelError(f"{self.source.path}: cannot be quantised to {self.type_name}: {offer.refusal}")
        free = shutil.disk_usage(self.target.parent).free
        if free < offer.num_bytes + SPARE_BYTES:
            raise ModelError(
                f"{self.target.name} needs {quantity(offer.num_bytes, 'B')} on the disk of {self.target.parent}, and "
                f"{quantity(free, 'B')} are free. Nothing was written. Free some, or choose a smaller type."
            )
        return offer

    def _check(self, answer: Mapping[str, Any]) -> None:
        """Raise ModelError unless the file is whole; then bring it to the disk."""
        reason = answer.get("failure", "")
        if not reason:
            try:
                read_model(self._partial)
            except ModelError:
                reason = _UNWRITTEN
        if reason:
            hint = f" The disk of {self.target.parent} may be full." if _UNWRITTEN in reason else ""
            raise ModelError(f"{self.target.name} could not be made ({reason}); what was written is removed.{hint}")
        with self._partial.open("rb") as file:
            os.fsync(file.fileno())


class _Stopped(EngineError):
    """A person stopped it."""


def _check_target(source: ModelFile, target: Path) -> None:
    """Refuse targets that would touch what is there."""
    if target.suffix.lower() != ".gguf":
        raise ConfigError(f"target = {str(target)!r}: must end in .gguf, so that it is found as a model")
    if not target.parent.is_dir():
        raise ConfigError(f"{target.parent}: there is no such folder; make it, or choose another for the target")
    if not target.exists():
        return
    if any(target.samefile(file) for file in source.files if file.exists()):
        raise ConfigError(f"{target}: is the model itself, which is read while the target is written; choose another")
    raise ConfigError(f"{target}: exists already; choose another name, or remove it first")


@contextmanager
def _locked(partial: Path, target: Path) -> Iterator[None]:
    """The half-written file, for this job alone; gone afterwards, unless it became the target."""
    try:
        with partial.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ModelError(f"{target.name} is being made already; wait for that, or stop it.") from error
            try:
                yield
            finally:
                partial.unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(f"{target}: cannot be written ({error.strerror})") from error
