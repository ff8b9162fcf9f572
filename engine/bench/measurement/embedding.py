"""Embedding target: benchmarks a pool of workers that share one embedding model."""

import time
from collections.abc import Mapping

from engine.bench.measurement.clients import Deadline, repeated
from engine.bench.measurement.load_timeout import LoadTimeout
from engine.bench.measurement.target import SAMPLE_S, Measured, no_collection, repetitions_for, steady_s
from engine.bench.measurement.texts import Texts
from engine.bench.planning.plan import EmbeddingCell
from engine.embedding.job import EmbedJob, EmbedResult
from engine.embedding.pool import EmbeddingPool
from engine.embedding.worker_group import WorkerFigures
from engine.errors import BenchTimeout, JobTimeout, WorkerDied
from engine.machine.noise import NoiseWatch


class EmbeddingTarget:
    """Target whose texts a pool embeds; other configurations may use the same pool, one at a time.

    facts: those given, which belong to the pool; warm_up() adds `one_text_s` (one text alone, on a warm pool),
    `cut_share` (share of the texts that the model truncates) and `repetitions`.
    """

    remark = ""

    def __init__(
        self,
        cell: EmbeddingCell,
        pool: EmbeddingPool,
        facts: Mapping[str, float] | None = None,
        *,
        sample_s: float = SAMPLE_S,
    ) -> None:
        self.pool = pool
        self.facts = dict(facts or {})
        self._workload = cell.workload
        self._sample_s = sample_s
        self._num_repetitions = 1

    def beside(self, cell: EmbeddingCell) -> "EmbeddingTarget":
        """Return a target on the same workers for a configuration that differs only in its requests."""
        return EmbeddingTarget(cell, self.pool, {"load_warm_s": self.pool.load_s}, sample_s=self._sample_s)

    def warm_up(self, timeout_s: float) -> None:
        """Repeat until steady, and compute the number of repetitions for one sample."""
        deadline, texts = Deadline(timeout_s), Texts(self._workload, None)
        num_cut = 0

        def once() -> float:
            nonlocal num_cut
            result = self._embed(texts.take(), deadline)
            num_cut = result.num_cut
            return result.elapsed_s

        self._num_repetitions = repetitions_for(self._sample_s, steady_s(once))
        alone = [self._embed(texts.take(1), deadline).elapsed_s for _ in range(3)]
        self.facts |= {
            "one_text_s": sorted(alone)[1],
            "cut_share": num_cut / self._workload.num_texts,
            "repetitions": self._num_repetitions,
        }

    def sample(self, seed: int, timeout_s: float) -> Measured:
        """Measure once; raises WorkerDied also where another worker has replaced a dead one meanwhile.

        Runs the computed number of repetitions, and further ones until the sample is long enough.
        """
        deadline, texts = Deadline(timeout_s), Texts(self._workload, seed)
        self._wake(texts, deadline)
        pids = _pids(self.pool.measure())
        with no_collection(), NoiseWatch(pids) as watch:
            started_at = time.time()
            results = repeated(
                lambda: self._embed(texts.take(), deadline), _seconds, self._num_repetitions, self._sample_s
            )
        after = self.pool.measure()
        if _pids(after) != pids:
            raise WorkerDied("a worker exited during the measurement, so the sample was dropped: measure again")
        processes = (after.program, *after.workers)
        metrics = {
            **_metrics(results, self.pool.spec.workers),
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


def _metrics(results: list[EmbedResult], num_workers: int) -> dict[str, float]:
    """Return the METRICS of embedding for requests that were embedded sequentially."""
    seconds = sum(map(_seconds, results))
    return {
        "sentences_per_s": sum(len(result.vectors) for result in results) / seconds,
        "embedded_per_s": sum(result.num_tokens for result in results) / seconds,
        "compute_share": sum(result.compute_s for result in results) / (seconds * num_workers),
    }


def _seconds(result: EmbedResult) -> float:
    return result.elapsed_s


def open_embedding_target(
    cell: EmbeddingCell, timeout: LoadTimeout | None = None, *, sample_s: float = SAMPLE_S
) -> EmbeddingTarget:
    """Return a target on a new pool. Raises ModelError or ConfigError, and the error of an ended `timeout`."""
    pool = EmbeddingPool(cell.spec, on_opening=(timeout or LoadTimeout()).begins)
    return EmbeddingTarget(cell, pool, {"load_warm_s": pool.load_s}, sample_s=sample_s)


def _pids(figures: WorkerFigures) -> list[int]:
    return [process.pid for process in (figures.program, *figures.workers)]
