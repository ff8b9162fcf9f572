"""Managed engines: servers that the workbench starts, watches and ends, each with one model."""

import asyncio
import secrets
import subprocess
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import psutil

from engine.backends.address import Address
from engine.backends.answer_stream import NOTHING_SENT
from engine.backends.link import Link
from engine.backends.managed_programs import ManagedKind, managed_missing, managed_spec, start
from engine.backends.openai_server import ServerEngine
from engine.backends.probing import Found, probe
from engine.backends.server_loop import ServerLoop
from engine.errors import EngineError, ModelError, PoolClosed, PromptTooLong, ServerFailed, WorkerDied
from engine.jobs import Job
from engine.models.gguf import ModelFile
from engine.models.reading import read_model
from engine.process.child import LOG_TAIL, Child
from engine.protocol import Startup
from engine.specs import PoolSpec

__all__ = ["ManagedEngine", "ManagedKind", "managed_missing", "open_managed"]

_POLL_S = 0.05
_LOG_EVERY_S = 5.0
_LAST_LINES = 6
"""Of the log, in an error."""
_ENDS_WITHIN_S = 1.0
"""Between the moment when a connection breaks and that when the system reports the end of the process."""


class ServerProcess:
    """Process of a managed server: starts it, waits until it listens, says how it ended."""

    def __init__(self, kind: ManagedKind, file: ModelFile, spec: PoolSpec) -> None:
        self.kind, self.file = kind, file
        self.key = secrets.token_urlsafe(24)
        self.is_stopped = False
        self._child: Child = start(kind, file, spec, self.key)
        self.pid, self.started_at = self._child.pid, self._child.started_at

    @property
    def is_alive(self) -> bool:
        """False once the process has ended."""
        return self._child.is_alive

    def address(self) -> Address:
        """Wait until it listens, and return its address, on a port that the system chose for it.

        The port is read from the process itself, so that no other program can take its place.
        """
        while self.is_alive:
            try:
                ports = [
                    one.laddr.port
                    for one in psutil.Process(self.pid).net_connections("tcp4")
                    if one.status == psutil.CONN_LISTEN
                ]
            except psutil.AccessDenied as error:
                if not self.is_alive:
                    continue
                raise ModelError(
                    f"{self.file.path}: the port of {self.kind} cannot be read ({error}): allow this program to see "
                    "the connections of its child processes"
                ) from error
            except psutil.Error:
                ports = []  # it has just ended, or is about to run another program
            if ports:
                return Address(f"http://127.0.0.1:{ports[0]}")
            self.shorten_log()
            time.sleep(_POLL_S)
        raise self.failure()

    def wait(self) -> None:
        """Wait until the process has ended, and keep its log short."""
        while True:
            try:
                self._child.process.wait(_LOG_EVERY_S)
            except subprocess.TimeoutExpired:
                self.shorten_log()
            else:
                return

    def shorten_log(self) -> None:
        """Keep the log short, which a server may fill as long as it runs."""
        self._child.shorten_log()

    async def has_ended(self, error: ServerFailed) -> bool:
        """Return whether the process has ended, which a broken connection shows a moment before the system does."""
        until = time.monotonic() + (_ENDS_WITHIN_S if error.status is None else 0.0)
        while self.is_alive and time.monotonic() < until:
            await asyncio.sleep(_POLL_S)
        return not self.is_alive

    def failure(self) -> EngineError:
        """Return the error for a server that ended before it had loaded its model."""
        if self.is_stopped:
            return PoolClosed("closed while this model was loading: load it again")
        return ModelError(f"{self.file.path}: {self.ending(' while loading the model')}")

    def ending(self, when: str = "") -> str:
        """Describe how the server ended, as a sentence with the last lines of its log."""
        self._child.close(patience_s=_ENDS_WITHIN_S)
        how = self._child.ending().partition(LOG_TAIL)[0]
        lines = self._child.log_tail().removeprefix(LOG_TAIL).strip().splitlines()[-_LAST_LINES:]
        return "\n".join([f"{self.kind} {how}{when}{LOG_TAIL if lines else ''}", *lines])

    def stop(self) -> None:
        """Kill the server without waiting for it; may be called from any thread."""
        self.is_stopped = True
        self._child.kill()

    def close(self) -> None:
        """Kill the server and wait for its end. Safe to call twice."""
        self.stop()
        self._child.close()


class ManagedEngine(ServerEngine):
    """A model on a server that was started for it. `close` ends the server.

    model: path of the file; address: of the server; pids: of its processes. Where the server ends by itself, open jobs
    fail with WorkerDied, and `ending` says why.
    """

    def __init__(
        self, process: ServerProcess, spec: PoolSpec, link: Link, loop: ServerLoop, found: Found, startup: Startup
    ) -> None:
        super().__init__(link, loop, found)
        self.kind, self.file, self.model = process.kind, process.file, str(process.file.path)
        self.address = link.address.root
        self.spec, self.threads, self.startup = spec, spec.threads or 1, startup
        self.pids = [process.pid]
        self._process = process
        weakref.finalize(self, process.stop)
        threading.Thread(
            target=_watch, args=(process, weakref.ref(self)), name="logitbench-server-watch", daemon=True
        ).start()

    async def _reason(self, job: Job, error: EngineError) -> EngineError:
        """Return the error of a job: WorkerDied where the connection broke because the server ended.

        llama_cpp.server sends nothing where a prompt is too long, and says why in its log only.
        """
        asked = error
        if self.kind == "llama_cpp.server" and str(error) == NOTHING_SENT:
            try:
                num_tokens, n_ctx = await self._num_tokens(job), self.capabilities.n_ctx
            except EngineError as failed:
                asked = failed
            else:
                if num_tokens is not None and n_ctx and num_tokens >= n_ctx:
                    return PromptTooLong(
                        f"the prompt is {num_tokens:,} tokens; the context holds {n_ctx:,}, and {self.kind} needs one "
                        "of them free: shorten the prompt or open the model with a larger context (n_ctx)"
                    )
        if isinstance(asked, ServerFailed) and await self._process.has_ended(asked):
            return WorkerDied(self._process.ending())
        return error

    async def _num_tokens(self, job: Job) -> int | None:
        """Return the length of a prompt as llama_cpp.server counts it, None where it answers something else."""
        match await self._link.ask("/extras/tokenize/count", {"model": self.found.model, "input": job.prompt}):
            case {"count": int(num_tokens)}:
                return num_tokens
        return None

    def died(self, how: str) -> None:
        """Fail the open jobs and take no more, as the server has ended."""
        jobs = self._waiting.close()
        self.ending = self.ending or PoolClosed(how)
        for job in jobs:
            job.fail(WorkerDied(how))
        super().close(how)

    def close(self, reason: str = "closed while this job was open") -> None:
        """Take no more jobs, end the open ones with PoolClosed and this reason, and end the server. Safe to call
        twice."""
        self._process.is_stopped = True
        super().close(reason)
        self._process.close()


def open_managed(
    kind: ManagedKind,
    model: str,
    spec: PoolSpec,
    *,
    on_opening: Callable[[Callable[[], None]], object] = lambda _abort: None,
) -> ManagedEngine:
    """Start a server with `model`, a path, and return the engine on it.

    It waits as long as the server runs: the caller limits the time, see LoadTimeout, through on_opening, which is
    called with a function that ends the start from any thread; PoolClosed is raised then. Raises
    ConfigError for parameters that this kind of server does not have and where its program is missing, MemoryRefused,
    ModelError with the tail of its log for a model that it cannot load, or where its port cannot be read.
    """
    file = read_model(Path(model))
    process = ServerProcess(kind, file, decided := managed_spec(kind, file, spec, on_opening))
    try:
        on_opening(process.stop)
        return _connected(process, decided)
    except BaseException:
        process.close()
        raise


def _connected(process: ServerProcess, spec: PoolSpec) -> ManagedEngine:
    """Wait until the server has loaded its model, and return the engine on it."""
    address = process.address()
    listens_at = time.monotonic()
    loop, link = ServerLoop(), Link(address, process.key)
    try:
        found = loop.call(_loaded(link, process, spec))
        times = process.started_at, listens_at, time.monotonic()
        startup = Startup(times[1] - times[0], times[2] - times[1], 0.0)
        return ManagedEngine(process, spec, link, loop, found, startup)
    except ServerFailed as error:
        is_over = process.is_stopped or loop.call(process.has_ended(error))
        loop.close(link.close())
        if not is_over:
            raise ModelError(f"{process.file.path}: {process.kind} cannot be used with it: {error}") from error
        raise process.failure() from error
    except BaseException:
        loop.close(link.close())
        raise


async def _loaded(link: Link, process: ServerProcess, spec: PoolSpec) -> Found:
    """Wait until the server answers, and return what it reports, with what the workbench has set."""
    while True:
        try:
            await link.ask("/v1/models")
            break
        except ServerFailed as error:
            if error.status != 503 or not process.is_alive:
                raise
            process.shorten_log()
            await asyncio.sleep(_POLL_S)
    found = await probe(link)
    can = found.capabilities
    return found._replace(capabilities=can._replace(n_ctx=can.n_ctx or spec.padded_n_ctx, num_sequences=spec.parallel))


def _watch(process: ServerProcess, engine: "weakref.ref[ManagedEngine]") -> None:
    """Wait for the end of the server, and tell the engine of it unless the workbench ended it or let it go."""
    process.wait()
    if not process.is_stopped and (alive := engine()) is not None:
        alive.died(process.ending())
    else:
        process.close()
