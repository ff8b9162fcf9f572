"""Model manager: loads one model at a time in the background, with progress, and ejects it."""

import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.backends.connecting import ExternalEngine, open_known, start_managed
from engine.backends.known import KnownEngine
from engine.backends.managed_programs import ManagedServer
from engine.bench.measurement.load_timeout import LoadTimeout, patience_s
from engine.cluster.specs import SENDS_WITHIN_S, ClusterSpec
from engine.errors import EngineError, ModelError, PoolClosed
from engine.history import EngineIdentity, ModelIdentity
from engine.models.gguf import ModelFile
from engine.models.identity import model_hash
from engine.models.reading import read_model
from engine.opening import open_engine
from engine.process.child import LOG_TAIL
from engine.protocol import Engine, OpenEngine
from engine.specs import PoolSpec
from engine.workbench.machine_lease import Lease, MachineLease

if TYPE_CHECKING:
    from engine.backends.openai_server import ServerEngine
    from engine.backends.probing import Found

LONGEST_DEFAULT_CTX = 2048
CONNECTS_WITHIN_S = 300.0
"""All that a server is asked before it counts as connected, of which it may load its model for some."""
_log = logging.getLogger(__name__)

EJECTED = "the model was ejected while this ran: load it again, then run"
REPLACED = "another model was loaded while this ran: load the first one again, then run"
CLOSED = "the workbench was closed while this ran: start it again, then run"
"""Reasons for jobs without a result after their model was closed."""


@dataclass(frozen=True)
class ModelState:
    """State of the model bar: nothing chosen, loading (`progress` 0 to 1), loaded (`engine`) or failed (`error`).

    step: current activity of a load on a cluster, in words.

    server: the external engine that is connected or was started here, None for a model `file` of this machine at
    `path`, whose workers run on the nodes of `cluster`, None for this machine. answering: that engine as trials record
    it; found: what its server says of itself.
    """

    path: Path | None = None
    cluster: ClusterSpec | None = None
    server: ExternalEngine | None = None
    file: ModelFile | None = None
    spec: PoolSpec = field(default_factory=PoolSpec)
    progress: float | None = None
    step: str = ""
    engine: Engine | None = None
    identity: ModelIdentity | None = None
    answering: EngineIdentity | None = None
    found: "Found | None" = None
    error: EngineError | None = None

    @property
    def is_loading(self) -> bool:
        """True while a model loads in the background."""
        return self.progress is not None

    @property
    def name(self) -> str:
        """Name of the file, or of the external engine; "" where nothing is chosen."""
        return self.server.name if self.server is not None else self.path.name if self.path is not None else ""

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


def server_identity(engine: "ServerEngine") -> ModelIdentity:
    """Return the identity of a model on a server: what the server says of it, as its file is not at hand."""
    found = engine.found
    identity = "\n".join((engine.model, found.model, found.quantisation, str(found.num_parameters)))
    name = found.model.rpartition("/")[2].removesuffix(".gguf") or found.model
    return ModelIdentity(
        name, engine.model, sha256(identity.encode()).hexdigest(), found.quantisation, found.num_parameters
    )


def _connected(engine: "ServerEngine", identity: ModelIdentity, name: str, url: str) -> dict[str, Any]:
    """Return the changes of the state once an external engine is connected. url: as trials record it."""
    return {
        "engine": engine,
        "identity": identity,
        "spec": engine.spec,
        "answering": EngineIdentity(name, url, engine.found.dialect.name, engine.capabilities.logprobs_of),
        "found": engine.found,
    }


def default_spec(file: ModelFile) -> PoolSpec:
    """Return the default pool parameters of a file: its trained context, up to 2,048 tokens a sequence."""
    return PoolSpec(n_ctx=min(file.n_ctx_train, LONGEST_DEFAULT_CTX))


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
            engine, name = self._state.engine, self._state.name
            if engine is not None and engine.ending is not None:
                _log.warning("%s: %s", name, engine.ending)
                why = str(engine.ending).partition(LOG_TAIL)[0].rstrip(".")
                error = ModelError(f"{name} is no longer loaded: {why}.")
                self._state = replace(self._state, engine=None, identity=None, error=error)
            return self._state

    def load(self, path: Path, spec: PoolSpec | None = None, cluster: ClusterSpec | None = None) -> None:
        """Replace the model in the background; progress and failure appear in `state`.

        Open jobs of the old model end with PoolClosed, and a load in progress is aborted. spec None: the default for
        the file; cluster None: this machine. Raises ConfigError while a measurement has exclusive use of the machine.
        """
        state = ModelState(path, cluster, spec=spec or PoolSpec(), progress=0.0)
        self._begin(state, partial(self._open, path, spec, cluster))

    def connect(self, server: ExternalEngine) -> None:
        """Replace the model by one on a server, which is started first where it is one of the workbench's own, in the
        background; as `load` otherwise."""
        opening = partial(self._start, server) if isinstance(server, ManagedServer) else partial(self._connect, server)
        self._begin(ModelState(server=server, progress=0.0), opening)

    def _begin(self, state: ModelState, opening: Callable[[int], dict[str, Any]]) -> None:
        """Begin to load what `state` names. `opening` gets the number of this load and returns the changes."""
        lease = self._machine.acquire(f"Loading {state.name}", "interactive")
        with self._lock:
            if self._is_closed:
                lease.release()
                return
            self._abandon_load()
            self._number += 1
            number, old = self._number, self._state.engine
            self._state = state
        arguments = state.name, opening, number, old, lease
        threading.Thread(target=self._load, args=arguments, name="logitbench-load", daemon=True).start()

    def load_again(self) -> None:
        """Load the model that failed once more, with the same parameters. Raises ConfigError as `load` does."""
        state = self.state
        if state.error is not None and state.path is not None:
            self.load(state.path, state.spec if state.file is not None else None, state.cluster)
        elif state.error is not None and state.server is not None:
            self.connect(state.server)

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

    def _load(
        self, name: str, opening: Callable[[int], dict[str, Any]], number: int, old: Engine | None, lease: Lease
    ) -> None:
        """Load the model and, after releasing the lease, publish the result in the state."""
        with self._one_load:
            with lease:
                if old is not None:
                    old.close(REPLACED)
                try:
                    changes = opening(number)
                except EngineError as error:
                    changes = {"error": error.bare()}
                except Exception as defect:
                    _log.exception("%s could not be loaded", name)
                    text = f"{name} could not be loaded because of a defect in this program: {defect!r}."
                    changes = {"error": ModelError(f"{text} Choose another.")}
            if not self._show(number, progress=None, **changes) and "engine" in changes:
                changes["engine"].close()

    def _open(self, path: Path, spec: PoolSpec | None, cluster: ClusterSpec | None, number: int) -> dict[str, Any]:
        """Load a model and return the changes of the state; empty where a later load or eject replaced this one."""
        file = read_model(path)
        spec = spec or default_spec(file)
        timeout = LoadTimeout(patience_s(file.size) if cluster is None else SENDS_WITHIN_S)
        if not self._show(number, timeout, file=file, spec=spec):
            return {}
        with timeout:
            digest = _hashed(path)
            opening = (
                self._open_engine
                if cluster is None
                else partial(open_engine, cluster=cluster, on_step=lambda doing: self._progress(number, step=doing))
            )
            engine = opening(
                str(path),
                spec,
                on_progress=lambda done: self._progress(number, progress=done),
                on_opening=timeout.begins,
            )
            timeout.begins(lambda: _abandon(engine, digest))
            identity = ModelIdentity(file.name, str(file.path), digest.result(), file.quantisation, file.num_parameters)
        return {"engine": engine, "identity": identity}

    def _connect(self, server: KnownEngine, number: int) -> dict[str, Any]:
        """Connect to a server and return the changes of the state; empty as in `_open`."""
        timeout = LoadTimeout(
            CONNECTS_WITHIN_S, "the server answers too slowly. Check that it responds, then try again"
        )
        if not self._show(number, timeout):
            return {}
        with timeout:
            engine = open_known(server, on_opening=timeout.begins)
        return _connected(engine, server_identity(engine), server.name, server.url)

    def _start(self, server: ManagedServer, number: int) -> dict[str, Any]:
        """Start a server and return the changes of the state; empty as in `_open`."""
        file = read_model(server.path)
        timeout = LoadTimeout(patience_s(file.size))
        if not self._show(number, timeout):
            return {}
        with timeout:
            digest = _hashed(server.path)
            engine = start_managed(server, on_opening=timeout.begins)
            timeout.begins(lambda: _abandon(engine, digest))
            try:
                hashed = digest.result()
            except BaseException:
                engine.close()
                raise
            identity = ModelIdentity(file.name, str(file.path), hashed, file.quantisation, file.num_parameters)
        return _connected(engine, identity, server.name, "")

    def _progress(self, number: int, **changes: Any) -> None:
        """Change the progress or the step of a load; ignored after it, as restarted workers report progress too."""
        with self._lock:
            if number == self._number and self._state.is_loading:
                self._state = replace(self._state, **changes)

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
