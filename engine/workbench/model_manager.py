"""Model manager: loads one model at a time in the background, with progress, and ejects it."""

import contextlib
import logging
import threading
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.bench.measurement.load_timeout import LoadTimeout, patience_s
from engine.errors import EngineError, ModelError, PoolClosed
from engine.history import ModelIdentity
from engine.models.folder_specs import longest_context
from engine.models.gguf import ModelFile
from engine.models.identity import model_hash
from engine.models.reading import read_model
from engine.opening import open_engine
from engine.process.child import LOG_TAIL
from engine.protocol import Engine, OpenEngine
from engine.specs import PoolSpec
from engine.workbench.machine_lease import Lease, MachineLease

LONGEST_DEFAULT_CTX = 2048
_log = logging.getLogger(__name__)

EJECTED = "the model was ejected while this ran: load it again, then run"
REPLACED = "another model was loaded while this ran: load the first one again, then run"
CLOSED = "the workbench was closed while this ran: start it again, then run"
"""Reasons for jobs without a result after their model was closed."""


@dataclass(frozen=True)
class ModelState:
    """State of the model bar: nothing chosen, loading (`progress` 0 to 1), loaded (`engine`) or failed (`error`)."""

    path: Path | None = None
    file: ModelFile | None = None
    spec: PoolSpec = field(default_factory=PoolSpec)
    progress: float | None = None
    engine: Engine | None = None
    identity: ModelIdentity | None = None
    error: EngineError | None = None

    @property
    def is_loading(self) -> bool:
        """True while a model loads in the background."""
        return self.progress is not None

    def has_loaded(self, path: Path) -> bool:
        """Return True if the engine runs this file."""
        return self.engine is not None and self.file is not None and self.file.path.resolve() == path.resolve()

    def loaded(self) -> tuple[Engine, ModelIdentity]:
        """Return the engine and the identity of its model. Raises EngineError with the reason where there is none."""
        if self.engine is not None and self.identity is not None:
            return self.engine, self.identity
        if self.error is not None:
            raise self.error.bare()
        if self.is_loading:
            raise ModelError("The model is still loading, so nothing can run yet. Wait a moment, then run again.")
        raise ModelError("No model is loaded, so nothing can run. Choose one in the model bar.")


def default_spec(file: ModelFile) -> PoolSpec:
    """Return the default pool parameters of a file: its trained context, up to 2,048 tokens a sequence."""
    longest = longest_context(file) if file.is_folder else file.n_ctx_train
    return PoolSpec(n_ctx=min(longest, LONGEST_DEFAULT_CTX))


class ModelManager:
    """Owner of one loaded model at a time. Any thread may call it."""

    def __init__(self, machine: MachineLease | None = None, open_engine: OpenEngine = open_engine) -> None:
        self._machine, self._open_engine = machine or MachineLease(), open_engine
        self._lock = threading.Lock()
        self._one_load = threading.Lock()
        self._state, self._number = ModelState(), 0
        self._load_timeout: LoadTimeout | None = None
        self._is_closed = False

    @property
    def state(self) -> ModelState:
        """Snapshot of the current state. An engine that ended by itself has failed."""
        with self._lock:
            engine, path = self._state.engine, self._state.path
            if engine is not None and engine.ending is not None and path is not None:
                _log.warning("%s: %s", path, engine.ending)
                why = str(engine.ending).partition(LOG_TAIL)[0].rstrip(".")
                error = ModelError(f"{path.name} is no longer loaded: {why}.")
                self._state = replace(self._state, engine=None, identity=None, error=error)
            return self._state

    def load(self, path: Path, spec: PoolSpec | None = None) -> None:
        """Replace the model in the background; progress and failure appear in `state`.

        Open jobs of the old model end with PoolClosed, and a load in progress is aborted. spec None: the default for
        the file. Raises ConfigError while a measurement has exclusive use of the machine.
        """
        lease = self._machine.acquire(f"Loading {path.name}", "interactive")
        with self._lock:
            if self._is_closed:
                lease.release()
                return
            self._abandon_load()
            self._number += 1
            number, old = self._number, self._state.engine
            self._state = ModelState(path, spec=spec or PoolSpec(), progress=0.0)
        arguments = path, spec, number, old, lease
        threading.Thread(target=self._load, args=arguments, name="logitbench-load", daemon=True).start()

    def load_again(self) -> None:
        """Load the model that failed once more, with the same parameters. Raises ConfigError as `load` does."""
        state = self.state
        if state.error is not None and state.path is not None:
            self.load(state.path, state.spec if state.file is not None else None)

    def eject(self, reason: str = EJECTED) -> None:
        """Close the engine and free its memory; a load in progress is aborted, even if it hangs.

        Open jobs end with PoolClosed and this reason.
        """
        with self._lock:
            self._abandon_load()
            self._number += 1
            old, self._state = self._state.engine, ModelState()
        if old is not None:
            old.close(reason)

    def close(self) -> None:
        """Eject the model, wait for the workers of an aborted load to end, and load no more models."""
        with self._lock:
            self._is_closed = True
        self.eject(CLOSED)
        with self._one_load:
            pass

    def _abandon_load(self) -> None:
        """Abort a load in progress, in a thread as its workers may take long to exit. Called under the lock."""
        timeout, self._load_timeout = self._load_timeout, None
        if timeout is not None:
            threading.Thread(target=timeout.stop, name="logitbench-abandon", daemon=True).start()

    def _load(self, path: Path, spec: PoolSpec | None, number: int, old: Engine | None, lease: Lease) -> None:
        """Load the model and, after releasing the lease, publish the result in the state."""
        with self._one_load:
            with lease:
                if old is not None:
                    old.close(REPLACED)
                try:
                    changes = self._open(path, spec, number)
                except EngineError as error:
                    changes = {"error": error.bare()}
                except Exception as defect:
                    _log.exception("%s could not be loaded", path)
                    text = f"{path.name} could not be loaded because of a defect in this program: {defect!r}."
                    changes = {"error": ModelError(f"{text} Choose another.")}
            if not self._show(number, progress=None, **changes) and "engine" in changes:
                changes["engine"].close()

    def _open(self, path: Path, spec: PoolSpec | None, number: int) -> dict[str, Any]:
        """Load a model and return the changes of the state; empty where a later load or eject replaced this one."""
        file = read_model(path)
        spec = spec or default_spec(file)
        timeout = LoadTimeout(patience_s(file.size))
        if not self._show(number, timeout, file=file, spec=spec):
            return {}
        with timeout:
            digest = _hashed(path)
            engine = self._open_engine(
                str(path), spec, on_progress=lambda done: self._progress(number, done), on_opening=timeout.begins
            )
            timeout.begins(lambda: _abandon(engine, digest))
            identity = ModelIdentity(file.name, str(file.path), digest.result(), file.quantisation, file.num_parameters)
        return {"engine": engine, "identity": identity}

    def _progress(self, number: int, progress: float) -> None:
        """Update the load progress; ignored after the load, as restarted workers report progress too."""
        with self._lock:
            if number == self._number and self._state.is_loading:
                self._state = replace(self._state, progress=progress)

    def _show(self, number: int, timeout: LoadTimeout | None = None, **changes: Any) -> bool:
        """Change the state, unless a later load or eject replaced this one; return whether it did not.

        timeout: aborts the load in progress, None once there is none.
        """
        with self._lock:
            if number != self._number:
                return False
            self._state, self._load_timeout = replace(self._state, **changes), timeout
            return True


def _hashed(path: Path) -> "Future[str]":
    """Return a future of a file's hash, computed in a daemon thread."""
    future: Future[str] = Future()

    def work() -> None:
        try:
            digest = model_hash(path)
        except Exception as error:
            _fail(future, error)
        else:
            with contextlib.suppress(InvalidStateError):
                future.set_result(digest)

    threading.Thread(target=work, name="logitbench-hash", daemon=True).start()
    return future


def _abandon(engine: Engine, digest: "Future[str]") -> None:
    """Close the engine and fail the hash, so that no caller waits for it."""
    engine.close()
    _fail(digest, PoolClosed("Loading was cancelled before the model was ready. Load it again."))


def _fail(future: "Future[str]", error: Exception) -> None:
    with contextlib.suppress(InvalidStateError):
        future.set_exception(error)
