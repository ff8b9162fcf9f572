"""A cell that embeds texts as a target of the benchmark: a pool of workers that share one embedding model."""

import time
from collections.abc import Mapping

from engine.bench.measuring.clients import Deadline, repeated
from engine.bench.measuring.opening import Opening
from engine.bench.measuring.surroundings import Watch
from engine.bench.measuring.target import SAMPLE_S, Measured, no_collection, repetitions_for, steady_s
from engine.bench.measuring.texts import Texts
from engine.bench.planning.plan import EmbeddingCell
from engine.embedding.crew import CrewFigures
from engine.embedding.job import EmbedResult
from engine.embedding.pool import EmbeddingPool
from engine.errors import BenchTimeout, JobTimeout, WorkerDied


class EmbeddingTarget:
    """A cell whose texts a pool embeds; other cells may ask the same pool, one at a time.

    facts: those given, which belong to the pool, and with warm_up() `one_text_s` (one text alone, on a warm pool),
    `cut_share` (of the texts that the model cuts) and `repetitions`.
    """

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
        """A cell that differs from this one only in what is asked, on the same workers."""
        return EmbeddingTarget(cell, self.pool, {"load_warm_s": self.pool.load_s}, sample_s=self._sample_s)

    def warm_up(self, timeout_s: float) -> None:
        """Repeat until steady, and reckon the repetitions that one sample needs."""
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
        """Measure once; raises WorkerDied also where another worker has taken a dead one's place meanwhile.

        The repetitions that were reckoned, and on until the sample is long enough.
        """
        deadline, texts = Deadline(timeout_s), Texts(self._workload, seed)
        self._wake(texts, deadline)
        pids = _pids(self.pool.measure())
        with no_collection(), Watch(pids) as watch:
            started_at = time.time()
            results = repeated(
                lambda: self._embed(texts.take(), deadline), _seconds, self._num_repetitions, self._sample_s
            )
        after = self.pool.measure()
        if _pids(after) != pids:
            raise WorkerDied("a worker ended while it was measured, so the sample was dropped: measure it again")
        processes = (after.program, *after.workers)
        metrics = {
            **_metrics(results, self.pool.spec.workers),
            **watch.use(),
            "pss_bytes": after.pss_bytes,
            "private_bytes": sum(process.private_bytes for process in processes),
        }
        return Measured(started_at, watch.seconds, metrics, watch.values(), watch.flag(), watch.programs())

    def close(self) -> None:
        """Close the pool, whoever else uses it."""
        self.pool.close()

    def _wake(self, texts: Texts, deadline: Deadline) -> None:
        """A text for every worker, so that none is measured out of its sleep."""
        for job in [self.pool.submit(texts.take(1)) for _worker in range(self.pool.spec.workers)]:
            job.result(deadline.left_s)

    def _embed(self, texts: list[str], deadline: Deadline) -> EmbedResult:
        job = self.pool.submit(texts)
        try:
            return job.result(deadline.left_s)
        except JobTimeout as error:
            job.cancel()
            raise BenchTimeout(
                f"{job.num_done:,} of {job.num_texts:,} texts were embedded within {deadline.timeout_s:g} s: the "
                "workers hang or are too slow for what is asked; ask for fewer texts or allow more time"
            ) from error


def _metrics(results: list[EmbedResult], num_workers: int) -> dict[str, float]:
    """Those of METRICS that tell of embedding, of what was embedded one request after the other."""
    seconds = sum(map(_seconds, results))
    return {
        "sentences_per_s": sum(len(result.vectors) for result in results) / seconds,
        "embedded_per_s": sum(result.num_tokens for result in results) / seconds,
        "compute_share": sum(result.compute_s for result in results) / (seconds * num_workers),
    }


def _seconds(result: EmbedResult) -> float:
    return result.elapsed_s


def open_embedding_target(
    cell: EmbeddingCell, opening: Opening | None = None, *, sample_s: float = SAMPLE_S
) -> EmbeddingTarget:
    """A target on a new pool. Raises ModelError or ConfigError, and what ends the `opening`."""
    pool = EmbeddingPool(cell.spec, on_opening=(opening or Opening()).begins)
    return EmbeddingTarget(cell, pool, {"load_warm_s": pool.load_s}, sample_s=sample_s)


def _pids(figures: CrewFigures) -> list[int]:
    return [process.pid for process in (figures.program, *figures.workers)]
