"""Embedding target: benchmarks a pool of workers that share one embedding model, or an external engine."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from engine.backends.embedding_replies import MOST_TEXTS
from engine.bench.measurement.clients import Deadline, repeated
from engine.bench.measurement.load_timeout import LoadTimeout
from engine.bench.measurement.target import (
    SAMPLE_S,
    Measured,
    no_collection,
    repetitions_for,
    steady_s,
    without_others,
)
from engine.bench.measurement.texts import Texts
from engine.bench.planning import engines
from engine.bench.planning.plan import EmbeddingCell
from engine.bench.planning.remote import NUM_ALONE, TEXTS, RemoteBudget
from engine.embedding.embedder import Embedder
from engine.embedding.job import EmbedJob, EmbedResult
from engine.embedding.worker_group import WorkerFigures
from engine.errors import BenchTimeout, JobTimeout, WorkerDied
from engine.machine.noise import NoiseWatch
from engine.opening import open_embedder
from engine.step_parts import Floats


class EmbeddingTarget:
    """Target whose texts a pool or an external engine embeds; other configurations may use the same one, one at a time.

    facts: those given, which belong to the pool; warm_up() adds `one_text_s` (one text alone, on a warm pool), for a
    pool `cut_share` (share of the texts that the model truncates), and `repetitions`. bound: called with the number of
    texts before they are sent to another machine, where a sample is its texts once.
    """

    def __init__(
        self,
        cell: EmbeddingCell,
        pool: Embedder,
        facts: Mapping[str, float] | None = None,
        bound: Callable[[int], object] | None = None,
        *,
        sample_s: float = SAMPLE_S,
    ) -> None:
        self.pool, self._bound = pool, bound
        self.facts, self.remark = dict(facts or {}), _remark(pool)
        self._workload = cell.workload
        self._sample_s = sample_s if bound is None else 0.0
        self._num_repetitions = 1

    def beside(self, cell: EmbeddingCell) -> "EmbeddingTarget":
        """Return a target on the same workers for a configuration that differs only in its requests."""
        facts = {"load_warm_s": self.facts["load_warm_s"]} if "load_warm_s" in self.facts else {}
        return EmbeddingTarget(cell, self.pool, facts, self._bound, sample_s=self._sample_s)

    def vectors(self, texts: Sequence[str], timeout_s: float) -> Floats:
        """Return the vectors of texts, which are not measured. Raises EngineError."""
        return self._embed(list(texts), Deadline(timeout_s)).vectors

    def warm_up(self, timeout_s: float) -> None:
        """Repeat until steady, and compute the number of repetitions for one sample; elsewhere embed single texts."""
        deadline, texts = Deadline(timeout_s), Texts(self._workload, None)
        if self._bound is None:
            self._warm_up(texts, deadline)
        alone = [self._embed(texts.take(1), deadline).elapsed_s for _ in range(NUM_ALONE)]
        self.facts["one_text_s"] = sorted(alone)[NUM_ALONE // 2]

    def _warm_up(self, texts: Texts, deadline: Deadline) -> None:
        num_cut = 0

        def once() -> float:
            nonlocal num_cut
            result = self._embed(texts.take(), deadline)
            num_cut = result.num_cut
            return result.elapsed_s

        self._num_repetitions = repetitions_for(self._sample_s, steady_s(once))
        self.facts["repetitions"] = self._num_repetitions
        if self.pool.max_tokens is not None:
            self.facts["cut_share"] = num_cut / self._workload.num_texts

    def sample(self, seed: int, timeout_s: float) -> Measured:
        """Measure once; raises WorkerDied also where another worker has replaced a dead one meanwhile.

        Runs the computed number of repetitions, and further ones until the sample is long enough.
        """
        deadline, texts = Deadline(timeout_s), Texts(self._workload, seed)
        if self._bound is None:
            self._wake(texts, deadline)
        before = self.pool.measure()
        pids = _pids(before)
        with no_collection(), NoiseWatch(pids) as watch:
            started_at = time.time()
            results = repeated(
                lambda: self._embed(texts.take(), deadline), _seconds, self._num_repetitions, self._sample_s
            )
        after, metrics = self.pool.measure(), _metrics(results)
        if after is None:
            metrics["workbench_share"] = watch.use()["workbench_share"]
            noise, flag = without_others(watch.values(), watch.seconds)
            return Measured(started_at, watch.seconds, metrics, noise, flag)
        if _pids(after) != pids:
            raise WorkerDied("a worker exited during the measurement, so the sample was dropped: measure again")
        processes = (after.program, *after.workers)
        metrics |= {
            "compute_share": _compute_share(results, self.pool.spec.workers),
            **watch.use(),
            "pss_bytes": after.pss_bytes,
            "private_bytes": sum(process.private_bytes for process in processes),
        }
        return Measured(started_at, watch.seconds, metrics, watch.values(), watch.flag(), watch.programs())

    def close(self) -> None:
        """Close the pool, even where other targets use it."""
        self.pool.close()

    def _wake(self, texts: Texts, deadline: Deadline) -> None:
        """Embed one text on every worker, so that none is measured while waking up."""
        jobs = [self.pool.submit(texts.take(1)) for _worker in range(self.pool.spec.workers)]
        try:
            for job in jobs:
                self._result(job, deadline)
        finally:
            for job in jobs:
                job.cancel()

    def _embed(self, texts: list[str], deadline: Deadline) -> EmbedResult:
        if self._bound is not None:
            self._bound(len(texts))
        return self._result(self.pool.submit(texts), deadline)

    def _result(self, job: EmbedJob, deadline: Deadline) -> EmbedResult:
        try:
            return job.result(deadline.left_s)
        except JobTimeout as error:
            job.cancel()
            raise BenchTimeout(
                f"{job.num_done:,} of {job.num_texts:,} texts were embedded within {deadline.timeout_s:g} s: the "
                "workers hang or are too slow; use fewer texts or allow more time"
            ) from error


def _metrics(results: list[EmbedResult]) -> dict[str, float]:
    """Return the METRICS of embedding for requests embedded one after another; no tokens where none are known."""
    seconds = sum(map(_seconds, results))
    metrics = {"sentences_per_s": sum(len(result.vectors) for result in results) / seconds}
    counts = [result.num_tokens for result in results if result.num_tokens is not None]
    if len(counts) == len(results):
        metrics["embedded_per_s"] = sum(counts) / seconds
    return metrics


def _compute_share(results: list[EmbedResult], num_workers: int) -> float:
    return sum(result.compute_s for result in results) / (sum(map(_seconds, results)) * num_workers)


def _remark(pool: Embedder) -> str:
    """Return what a reader of an external engine's figures must know."""
    if not pool.spec.engine:
        return ""
    return (
        f"model: {pool.name}; {pool.spec.workers:,} requests of at most {MOST_TEXTS:,} texts at once; memory and "
        "processor use: not measured, as it was not started here"
    )


def _seconds(result: EmbedResult) -> float:
    return result.elapsed_s


def open_embedding_target(
    cell: EmbeddingCell,
    timeout: LoadTimeout | None = None,
    budget: RemoteBudget | None = None,
    *,
    sample_s: float = SAMPLE_S,
) -> EmbeddingTarget:
    """Return a target on a new pool, or on an external engine.

    budget: what may be sent to other machines, by default nothing. Raises ModelError, ServerFailed, ConfigError also
    where that was not confirmed, and the error of an ended `timeout`.
    """
    facts, bound = dict[str, float](), None
    if engines.is_remote(cell.spec.backend):
        address, left = engines.known_engine(cell.spec.backend).url, budget or RemoteBudget(sent=TEXTS)
        left.check({address: 1})
        bound = partial(left.take, address)
    pool = open_embedder(cell.spec, on_opening=(timeout or LoadTimeout()).begins)
    if not cell.spec.engine:
        facts["load_warm_s"] = pool.load_s
    return EmbeddingTarget(cell, pool, facts, bound, sample_s=sample_s)


def _pids(figures: WorkerFigures | None) -> list[int]:
    return [] if figures is None else [process.pid for process in (figures.program, *figures.workers)]
