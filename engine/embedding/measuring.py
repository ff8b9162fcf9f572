"""Measurement of backends: each alternates with the reference, float32 in PyTorch, so that conditions are the same."""

import contextlib
import math
from collections.abc import Callable
from datetime import UTC, datetime
from statistics import median
from typing import NamedTuple

from engine.embedding.agreement import NOT_COMPARED, SAME, Agreement, agreement
from engine.embedding.backends import check_usable, usable
from engine.embedding.choice import BackendSpeed, Measurement, chosen_backend, keep_measurement
from engine.embedding.job import EmbedResult
from engine.embedding.models import find_model
from engine.embedding.pool import EmbeddingPool
from engine.embedding.program import OnOpening
from engine.embedding.sentences import passages
from engine.embedding.specs import EmbedSpec
from engine.errors import EngineError, JobTimeout
from engine.step_parts import Floats

REFERENCE = "torch"
ROUNDS = 3
LONGEST_PASS_S = 2.0
"""Target seconds of one pass: where all texts take longer, only some of them are timed."""

POLL_S = 0.2


class Progress(NamedTuple):
    """Progress: share done, 0 to 1, and current activity, in words."""

    share: float
    doing: str


def measure_backends(
    model: str = "",
    *,
    rounds: int = ROUNDS,
    on_progress: Callable[[Progress], object] = lambda _progress: None,
    on_opening: OnOpening | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Measurement | None:
    """Measure speed, memory and agreement of every usable backend for a model; saved for `chosen_backend`.

    One worker on all cores, as by default. At most two models are in memory at a time. A backend that fails has a
    reason instead of figures. Returns None, saving nothing, where is_stopped became true; on_opening: as in
    EmbeddingPool. Raises ModelError for a model that is not on this machine, ConfigError where no backend is installed,
    and what the first backend raises.
    """
    found = find_model(model)
    check_usable(chosen_backend(found), found)
    names = usable(found)
    try:
        backends = _Rounds(model, names, rounds, on_progress, on_opening, is_stopped).measure()
    except _Stopped:
        return None
    when = datetime.now(UTC).isoformat(timespec="seconds")
    done = Measurement(found.name, when, len(passages()), rounds, tuple(backends))
    keep_measurement(found, done)
    return done


class _Stopped(Exception):
    """The measurement was stopped."""


class _Rounds:
    """Measurement of the backends `names`, counting their passes over the texts for progress."""

    def __init__(
        self,
        model: str,
        names: list[str],
        rounds: int,
        on_progress: Callable[[Progress], object],
        on_opening: OnOpening | None,
        is_stopped: Callable[[], bool],
    ) -> None:
        self._model, self._names, self._rounds = model, names, rounds
        self._texts = self._timed = passages()
        self._on_progress, self._on_opening, self._is_stopped = on_progress, on_opening, is_stopped
        self._num_done, self._num_passes = 0, rounds + 1 + (len(names) - 1) * (2 * rounds + 1)

    def measure(self) -> list[BackendSpeed]:
        """Measure every backend: the first (for a folder, the reference) alone, then alternating with each other."""
        with self._open(self._names[0]) as first:
            warm = self._pass(first, self._texts)
            self._timed = self._texts[:: math.ceil(warm.elapsed_s / LONGEST_PASS_S)]
            passes = [self._pass(first, self._timed) for _round in range(self._rounds)]
            others = [self._beside(first, warm.vectors, passes, name) for name in self._names[1:]]
            is_reference = first.backend == REFERENCE
            own = self._speed(first, passes, *((1.0, SAME) if is_reference else (math.nan, NOT_COMPARED)))
            return [own, *others]

    def _beside(self, reference: EmbeddingPool, truth: Floats, passes: list[EmbedResult], name: str) -> BackendSpeed:
        """Measure one backend; the reference's passes in between are appended to `passes`."""
        before = self._num_done
        try:
            with self._open(name) as pool:
                near = agreement(self._pass(pool, self._texts).vectors, truth)
                ours, ratios = [], []
                for _round in range(self._rounds):
                    passes.append(self._pass(reference, self._timed))
                    ours.append(self._pass(pool, self._timed))
                    ratios.append(passes[-1].elapsed_s / ours[-1].elapsed_s)
                return self._speed(pool, ours, median(ratios), near)
        except EngineError as error:
            self._num_done = before + 2 * self._rounds + 1
            return BackendSpeed(name, reason=str(error))

    def _open(self, name: str) -> EmbeddingPool:
        self._tell(f"loading {name}")
        return EmbeddingPool(EmbedSpec(model=self._model, backend=name), on_opening=self._on_opening)

    def _pass(self, pool: EmbeddingPool, texts: list[str]) -> EmbedResult:
        job = pool.submit(texts)
        while not job.done():
            self._tell(pool.backend)
            with contextlib.suppress(JobTimeout):
                job.result(POLL_S)
        self._num_done += 1
        return job.result()

    def _speed(self, pool: EmbeddingPool, passes: list[EmbedResult], speedup: float, near: Agreement) -> BackendSpeed:
        seconds, num_tokens = median(one.elapsed_s for one in passes), passes[0].num_tokens
        return BackendSpeed(
            name=pool.backend,
            texts_per_s=len(self._timed) / seconds,
            tokens_per_s=math.nan if num_tokens is None else num_tokens / seconds,
            speedup=speedup,
            memory_bytes=pool.measure().pss_bytes,
            agreement=near,
        )

    def _tell(self, doing: str) -> None:
        if self._is_stopped():
            raise _Stopped
        self._on_progress(Progress(self._num_done / self._num_passes, doing))
