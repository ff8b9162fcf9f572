"""Embedding manager: opens one embedding model in the background on first use, with progress, and releases it."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import NamedTuple

from engine.bench.measurement.load_timeout import LoadTimeout
from engine.bench.planning.engines import known_engine
from engine.embedding.embedder import Embedder, Text
from engine.embedding.job import EmbedResult
from engine.embedding.models import find_model
from engine.embedding.specs import EmbedSpec
from engine.errors import ConfigError, JobTimeout, PoolClosed
from engine.opening import open_embedder
from engine.step_parts import Floats
from engine.tasks import Progress, Stopped, Task
from engine.units import counted
from engine.workbench.machine_lease import MachineLease
from engine.workbench.similarity import project

KEPT = 8
"""Number of finished tasks whose vectors are cached, so that a page rerun need not recompute them."""

POLL_S, QUIET_S = 0.1, 60.0

RELEASED = "the embedding model was released while this ran: try again"
REPLACED = "another embedding model was opened while this ran: try again"
"""Reasons for texts whose model was closed."""

LOADING = "Loading the embedding model and its libraries"
CONNECTING = "Connecting to the engine that embeds"
CONNECTS_WITHIN_S = 300.0
"""From the first question to an engine to its first vector, of which it may load its model for some."""
TOO_SLOW = "the engine answers too slowly. Check that it responds, then try again"
_Key = tuple[tuple[str, ...], EmbedSpec, bool, str]


class _Connecting(NamedTuple):
    """A connection to an external engine that is not yet there. number: that of the request that it is for."""

    spec: EmbedSpec
    limit: LoadTimeout
    number: int


class Embedded:
    """Texts with their vectors of length 1 and their projection onto a map.

    model: name of the embedding model. max_tokens: tokens of each text that it reads, None where that is not known.
    num_tokens: likewise.
    """

    def __init__(self, texts: tuple[str, ...], result: EmbedResult, model: str, max_tokens: int | None) -> None:
        self.texts, self.model, self.max_tokens = texts, model, max_tokens
        self.vectors: Floats = result.vectors
        self.projection = project(result.vectors)
        self.num_tokens, self.num_cut, self.elapsed_s = result.num_tokens, result.num_cut, result.elapsed_s


class EmbeddingManager:
    """Owner of one embedding pool at a time. Any thread may call it."""

    def __init__(self, machine: MachineLease | None = None) -> None:
        self._machine = machine or MachineLease()
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._pool: Embedder | None = None
        self._pool_url = ""
        self._tasks: dict[_Key, Task[Embedded]] = {}
        self._asked_at, self._num_computed = -math.inf, 0
        self._is_closed = False
        self._connecting: _Connecting | None = None
        self._numbers = count(1)  # of requests for texts, in the order in which they came

    @property
    def is_busy(self) -> bool:
        """True while texts that a caller waits for are being embedded."""
        with self._lock:
            return self._num_computed > 0 or any(task.is_running for task in self._tasks.values())

    @property
    def is_open(self) -> bool:
        """True while a model is in memory, or an external engine is connected."""
        return self._pool is not None

    @property
    def open_spec(self) -> EmbedSpec | None:
        """Parameters of the model in memory, None where there is none; an external engine's model is elsewhere."""
        pool = self._pool
        return None if pool is None or pool.spec.engine else pool.spec

    def is_free_for(self, spec: EmbedSpec) -> bool:
        """Return True where this model is open or being connected, or no other one was used in the last QUIET_S."""
        in_use = self._connecting or self._pool
        return in_use is None or in_use.spec == spec or self.quiet_s > QUIET_S

    @property
    def quiet_s(self) -> float:
        """Seconds since vectors were last requested; 0 while such a request is running."""
        return 0.0 if self.is_busy else time.monotonic() - self._asked_at

    def embed(self, texts: tuple[str, ...], spec: EmbedSpec | None = None, *, is_query: bool = False) -> Task[Embedded]:
        """Embed texts in the background; a repeated request for the same texts returns the same task.

        A spec other than the last opens another pool; jobs of the old one, and a connection to an engine that is not
        yet there, end with PoolClosed. Raises ConfigError while a measurement is running, and PoolClosed after close().
        """
        spec = spec or EmbedSpec()
        key = (texts, spec, is_query, _url(spec))
        with self._lock:
            self._asked_at = time.monotonic()
            if (known := self._tasks.pop(key, None)) is not None:
                self._tasks[key] = known
                return known
            if self._is_closed:
                raise PoolClosed("The workbench has been closed: start it again.")
            name = f"An embedding of {counted(len(texts), 'text')}"
            number = next(self._numbers)
            task = Task[Embedded](name, lambda task: self._embed(task, texts, spec, is_query, number))
            task.start(self._machine.acquire(name, "shared"))
            self._forget_old()
            self._tasks[key] = task
        return task

    def read(self, texts: tuple[str, ...], spec: EmbedSpec, is_unwanted: Callable[[], bool]) -> EmbedResult | None:
        """Return vectors for background work: blocks until they are ready and does not cache them.

        Returns None once `is_unwanted` returns True, or after close(). Raises as EmbeddingPool and EmbedJob.result do,
        also PoolClosed when another model is requested in the meantime.
        """
        found = self._vectors(texts, spec, is_unwanted)
        return None if found is None else found[0]

    def compute(
        self, texts: Sequence[Text], spec: EmbedSpec, is_unwanted: Callable[[], bool]
    ) -> tuple[EmbedResult, int | None] | None:
        """Return vectors of texts without a prefix, for a caller that waits, and the tokens of a text that count.

        They are not cached. Returns None and raises as `read` does, also MachineBusy while a measurement is running.
        """
        with self._lock:
            self._num_computed += 1
        try:
            with self._machine.acquire(f"An embedding of {counted(len(texts), 'text')}", "call"):
                return self._vectors(texts, spec, is_unwanted, has_prefix=False)
        finally:
            with self._lock:
                self._num_computed -= 1
                self._asked_at = time.monotonic()

    def _vectors(
        self, texts: Sequence[Text], spec: EmbedSpec, is_unwanted: Callable[[], bool], *, has_prefix: bool = True
    ) -> tuple[EmbedResult, int | None] | None:
        def check() -> None:
            if self._is_closed or is_unwanted():
                raise Stopped("These texts are no longer wanted.")

        number = next(self._numbers)
        try:
            with self._alone(check):
                pool = self._open(spec, number)
        except Stopped:
            return None
        try:
            job = pool.submit(texts, has_prefix=has_prefix)
            while not is_unwanted():
                with suppress(JobTimeout):
                    return job.result(POLL_S), pool.max_tokens
            job.cancel()
            return None
        except PoolClosed:
            self._drop(pool)
            raise

    def forget(self, task: Task[Embedded]) -> None:
        """Drop a task, so that the next request for its texts embeds them again."""
        with self._lock:
            self._tasks = {key: other for key, other in self._tasks.items() if other is not task}

    def release(self) -> None:
        """Free the model's memory; cached vectors stay, and the next texts open the model again.

        A connection to an external engine that is not yet there is given up.
        """
        with self._alone(self._end_connecting):
            self._let_go()

    def close(self) -> None:
        """Stop the workers and accept no more texts; waits for a load in progress."""
        with self._lock:
            self._is_closed = True
        self.release()

    def _embed(
        self, task: Task[Embedded], texts: tuple[str, ...], spec: EmbedSpec, is_query: bool, number: int
    ) -> Embedded:
        def check() -> None:
            task.check()
            self._end_older(spec, number)

        task.update(doing=CONNECTING if spec.engine else LOADING)
        pool: Embedder | None = None
        try:
            with self._alone(check):
                if self._is_closed:
                    raise PoolClosed("The workbench was closed before these texts were embedded.")
                pool = self._open(spec, number, task.on_stop)
                job = pool.submit(texts, is_query=is_query)
            task.on_stop(job.cancel)
            task.follow(lambda: Progress(job.progress, f"Embedding {counted(len(texts), 'text')}"))
            result = job.result()
        except PoolClosed:
            self._drop(pool)
            task.check()
            raise
        if result.is_cancelled:
            raise Stopped(f"{task.name} was stopped.")
        return Embedded(texts, result, pool.name, pool.max_tokens)

    def _open(
        self, spec: EmbedSpec, number: int, on_opening: Callable[[Callable[[], object]], object] = lambda _abort: None
    ) -> Embedder:
        """Return the open pool, or open one for the request of this number.

        on_opening: called with a function that ends that from any thread.
        """
        url = _url(spec)  # another engine may have been given the name of the one that is connected
        pool = self._pool
        if pool is None or pool.spec != spec or self._pool_url != url:
            if not spec.engine:
                find_model(spec.model)  # raises for an unknown model before the open one is closed
            self._let_go(REPLACED)
            self._pool_url = url
            pool = self._pool = self._connected(spec, number, on_opening) if spec.engine else open_embedder(spec)
        return pool

    def _connected(
        self, spec: EmbedSpec, number: int, on_opening: Callable[[Callable[[], object]], object]
    ) -> Embedder:
        """Connect to an external engine, which may never answer. Raises BenchTimeout, and PoolClosed where it ends."""
        connecting, opened = LoadTimeout(CONNECTS_WITHIN_S, TOO_SLOW), list[Embedder]()
        with self._lock:
            if self._is_closed:
                raise PoolClosed("The workbench has been closed: start it again.")
            self._connecting = _Connecting(spec, connecting, number)
        on_opening(connecting.stop)
        try:
            with connecting:
                opened.append(open_embedder(spec, on_opening=connecting.begins))
        except BaseException:
            for pool in opened:  # it was ended when it had just been connected
                pool.close()
            raise
        finally:
            with self._lock:
                self._connecting = None
        return opened[0]

    @contextmanager
    def _alone(self, check: Callable[[], object]) -> Iterator[None]:
        """Hold the lock on opening and closing models inside the block; `check` is called every POLL_S until it is
        held, and once then."""
        check()
        while not self._opening.acquire(timeout=POLL_S):
            check()
        try:
            check()
            yield
        finally:
            self._opening.release()

    def _end_connecting(self) -> None:
        """End the connection to an engine that is not yet there."""
        if (connecting := self._connecting) is not None:
            connecting.limit.stop(RELEASED)

    def _end_older(self, spec: EmbedSpec, number: int) -> None:
        """End an older request's connection that is not yet there, unless it is for this spec and where it is now."""
        with self._lock:
            connecting, url = self._connecting, self._pool_url
        if connecting is None or connecting.number > number:
            return
        if connecting.spec != spec or _url(connecting.spec) != url:
            connecting.limit.stop(REPLACED)

    def _drop(self, pool: Embedder | None) -> None:
        """Forget a closed pool, unless another has replaced it."""
        with self._lock:
            if pool is None or self._pool is not pool:
                return
            self._pool = None
        pool.close()

    def _let_go(self, reason: str = RELEASED) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close(reason)

    def _forget_old(self) -> None:
        over = [key for key, task in self._tasks.items() if not task.is_running]
        for key in over[: max(0, len(over) - KEPT + 1)]:
            del self._tasks[key]


def _url(spec: EmbedSpec) -> str:
    """Return the URL of the external engine that a spec names; "" for a model of this machine, or an unknown name."""
    try:
        return known_engine(spec.backend).url if spec.engine else ""
    except ConfigError:
        return ""
