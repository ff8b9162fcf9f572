"""The place for one embedding model: opened in the background by the first texts, with progress, and let go again."""

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from engine.embedding.job import EmbedJob, EmbedResult
from engine.embedding.models import find_model
from engine.embedding.pool import EmbeddingPool
from engine.embedding.specs import EmbedSpec
from engine.errors import ConfigError, EngineError, JobTimeout, ModelError, PoolClosed
from engine.results import Floats
from engine.units import counted
from engine.workbench.similarity import project

KEPT = 8
"""Finished pieces of work whose vectors are kept, so that a page drawn again need not compute them again."""

POLL_S, QUIET_S = 0.1, 60.0

Stage = Literal["loading", "embedding", "done"]
_Key = tuple[tuple[str, ...], EmbedSpec, bool]
_log = logging.getLogger(__name__)


class Embedded:
    """Texts with their vectors of length 1 and their places on a map, by the model `model`, which takes `max_tokens`
    of each."""

    def __init__(self, texts: tuple[str, ...], result: EmbedResult, model: str, max_tokens: int) -> None:
        self.texts, self.model, self.max_tokens = texts, model, max_tokens
        self.vectors: Floats = result.vectors
        self.projection = project(result.vectors)
        self.num_tokens, self.num_cut, self.elapsed_s = result.num_tokens, result.num_cut, result.elapsed_s


class Work:
    """Texts on their way to vectors. `error` says why there are none; `is_stopped`: somebody stopped it."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self.texts = texts
        self.stage: Stage = "loading"
        self.found: Embedded | None = None
        self.error: EngineError | None = None
        self.is_stopped = False
        self._job: EmbedJob | None = None
        self._lock, self._over = threading.Lock(), threading.Event()

    @property
    def share(self) -> float:
        """How much is embedded, 0 to 1; 0 while the model loads."""
        return self._job.progress if self._job else 0.0

    def done(self) -> bool:
        """True once there are vectors, an error, or neither because it was stopped."""
        return self._over.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; False where it is not over after `timeout` seconds."""
        return self._over.wait(timeout)

    def stop(self) -> None:
        """Want it no longer. A model that is being loaded is loaded to its end."""
        with self._lock:
            self.is_stopped = not self.done()
            if self._job is not None:
                self._job.cancel()

    # what the slot tells

    def follow(self, job: EmbedJob) -> None:
        """The texts are with the workers."""
        with self._lock:
            self._job, self.stage = job, "embedding"
            if self.is_stopped:
                job.cancel()

    def end(self, found: Embedded | None = None, error: EngineError | None = None) -> None:
        """It is over."""
        with self._lock:
            self.found, self.error, self.stage = found, error, "done"
            self._over.set()


class EmbeddingSlot:
    """Holds one pool at a time. Any thread may call it."""

    def __init__(self, is_measuring: Callable[[], bool] = lambda: False) -> None:
        self._is_measuring = is_measuring
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._pool: EmbeddingPool | None = None
        self._works: dict[_Key, Work] = {}
        self._asked_at = -math.inf
        self._is_closed = False

    @property
    def doing(self) -> str:
        """What is being embedded, in words; empty where nothing is."""
        with self._lock:
            num = sum(len(work.texts) for work in self._works.values() if not work.done())
        return f"An embedding of {counted(num, 'text')}" if num else ""

    @property
    def is_open(self) -> bool:
        """True while a model holds memory."""
        return self._pool is not None

    def is_free_for(self, spec: EmbedSpec) -> bool:
        """True where this model is open, or none that somebody used lately."""
        pool = self._pool
        return pool is None or pool.spec == spec or self.quiet_s > QUIET_S

    @property
    def quiet_s(self) -> float:
        """Seconds since somebody last asked for vectors; 0 while that is being done."""
        return 0.0 if self.doing else time.monotonic() - self._asked_at

    def embed(self, texts: tuple[str, ...], spec: EmbedSpec | None = None, *, is_query: bool = False) -> Work:
        """Have texts embedded in the background; the same texts, asked for again, are the same work.

        A spec other than the last opens another pool, and what the old one was doing ends with PoolClosed. Raises
        ConfigError while a benchmark measures, and PoolClosed after close().
        """
        spec = spec or EmbedSpec()
        key = (texts, spec, is_query)
        with self._lock:
            self._asked_at = time.monotonic()
            if (known := self._works.pop(key, None)) is not None:
                self._works[key] = known
                return known
            if self._is_closed:
                raise PoolClosed("The workbench has been closed: start it again.")
            if self._is_measuring():
                raise ConfigError(
                    "A benchmark measures now, and embedding would disturb it. Wait for its end, or stop it."
                )
            self._forget_old()
            work = self._works[key] = Work(texts)
        threading.Thread(target=self._do, args=(work, spec, is_query), name="logitbench-embed", daemon=True).start()
        return work

    def read(self, texts: tuple[str, ...], spec: EmbedSpec, is_unwanted: Callable[[], bool]) -> EmbedResult | None:
        """Vectors for what is done in the background: the caller waits for them, and they are kept nowhere here.

        None where they became unwanted on the way. Raises as EmbeddingPool and EmbedJob.result do, PoolClosed too when
        somebody asks for another model meanwhile.
        """
        with self._opening:
            if self._is_closed or is_unwanted():
                return None
            pool = self._open(spec)
        try:
            job = pool.submit(texts)
            while not is_unwanted():
                with suppress(JobTimeout):
                    return job.result(POLL_S)
            job.cancel()
            return None
        except PoolClosed:
            self._drop(pool)
            raise

    def forget(self, work: Work) -> None:
        """Have the same texts embedded anew when they are asked for again."""
        with self._lock:
            self._works = {key: other for key, other in self._works.items() if other is not work}

    def release(self) -> None:
        """Free the model's memory; vectors that are there stay, and the next texts open it again."""
        with self._opening:
            self._let_go()

    def close(self) -> None:
        """End the workers and take nothing more; a load in progress is waited for."""
        with self._lock:
            self._is_closed = True
        self.release()

    def _do(self, work: Work, spec: EmbedSpec, is_query: bool) -> None:
        pool: EmbeddingPool | None = None
        try:
            with self._opening:
                pool = None if work.is_stopped or self._is_closed else self._open(spec)
                if pool is None:
                    work.end()
                    return
                job = pool.submit(work.texts, is_query=is_query)
            work.follow(job)
            result = job.result()
            is_whole = not result.is_cancelled
            work.end(Embedded(work.texts, result, pool.model.name, pool.max_tokens) if is_whole else None)
        except PoolClosed as error:
            work.end(error=error)
            self._drop(pool)
        except EngineError as error:
            work.end(error=error)
        except Exception as defect:
            _log.exception("texts could not be embedded")
            work.end(error=ModelError(f"The texts could not be embedded, through a defect of this program: {defect!r}"))

    def _open(self, spec: EmbedSpec) -> EmbeddingPool:
        if self._pool is None or self._pool.spec != spec:
            find_model(spec.model)  # a model that is not here costs nobody the one that is open
            self._let_go()
            self._pool = EmbeddingPool(spec)
        return self._pool

    def _drop(self, pool: EmbeddingPool | None) -> None:
        """Let go of a pool that takes nothing more, unless there is another in its place."""
        with self._opening:
            if self._pool is pool:
                self._let_go()

    def _let_go(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _forget_old(self) -> None:
        over = [key for key, work in self._works.items() if work.done()]
        for key in over[: max(0, len(over) - KEPT + 1)]:
            del self._works[key]
