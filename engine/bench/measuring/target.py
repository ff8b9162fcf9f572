"""What a benchmark measures: something that can be warmed up, sampled and closed; here a pool of workers."""

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from types import MappingProxyType
from typing import NamedTuple, Protocol

from engine.bench.findings.waterfall import PartTotals, seconds_of_pool
from engine.bench.measuring import page_cache
from engine.bench.measuring.clients import Deadline
from engine.bench.measuring.load import Load
from engine.bench.measuring.metrics import Repetition, metrics_of, seconds_of
from engine.bench.measuring.opening import Opening
from engine.bench.measuring.surroundings import Watch
from engine.bench.planning.plan import Cell
from engine.errors import BenchTimeout, JobTimeout, ModelError, WorkerDied
from engine.models.available import available_memory
from engine.models.gguf import read_model
from engine.pool.pool import Pool
from engine.samples import Flag

SAMPLE_S = 1.0
"""A sample lasts at least this long."""
_STEADY = 0.05
"""Warm-up ends when a repetition takes as long as the one before, within this share of it,"""
_MOST_WARM_UPS = 8
_WARM_UP_S = 2.0
"""and at the latest after so many, or so many seconds."""
COLD_TIMEOUT_S = 600.0

_MARGIN = 1.1
_MOST_REPETITIONS = 10_000


class Measured(NamedTuple):
    """One sample. started_at: Unix seconds; metrics by the names of METRICS, surroundings by those of SURROUNDINGS.

    programs: cores that other programs used, by name.
    """

    started_at: float
    duration_s: float
    metrics: Mapping[str, float]
    surroundings: Mapping[str, float]
    flag: Flag
    programs: Mapping[str, float] = MappingProxyType({})


class Target(Protocol):
    """One cell with its workers loaded. facts: what is measured once (see CellRecord), filled by warm_up()."""

    @property
    def facts(self) -> Mapping[str, float]: ...

    def warm_up(self, timeout_s: float) -> None:
        """Run until the time of a repetition is steady, but not for long.

        Raises BenchTimeout after `timeout_s` seconds, or the EngineError that ended a request.
        """

    def sample(self, seed: int, timeout_s: float) -> Measured:
        """Measure once; the same seed asks the same. Raises as warm_up() does."""

    def close(self) -> None:
        """End the workers; safe to call twice, where they hang, and from another thread, where sample() then raises."""


class PoolTarget:
    """A cell whose requests a pool answers; other cells may ask the same pool, one at a time.

    facts: those given, which belong to the pool, and with warm_up() `first_token_s` of a fresh pool and `repetitions`;
    of a single stream also the parts of the time per token (see `waterfall`) over all samples so far.
    """

    def __init__(
        self,
        cell: Cell,
        pool: Pool,
        facts: Mapping[str, float] | None = None,
        *,
        is_fresh: bool = False,
        sample_s: float = SAMPLE_S,
    ) -> None:
        self.pool = pool
        self.facts = dict(facts or {})
        self._load = Load(pool, cell.workload)
        self._objective = cell.objective
        self._is_fresh, self._sample_s = is_fresh, sample_s
        self._num_repetitions = 1
        self._parts = PartTotals()
        self._has_parts = cell.pool.instances == cell.pool.parallel == 1 and not cell.workload.depth

    def beside(self, cell: Cell) -> "PoolTarget":
        """A cell that differs from this one only in what is asked, on the same workers."""
        facts = {name: value for name, value in self.facts.items() if name != "repetitions"}
        return PoolTarget(cell, self.pool, facts, sample_s=self._sample_s)

    def warm_up(self, timeout_s: float) -> None:
        """Repeat until steady, and reckon the repetitions that one sample needs."""
        deadline = Deadline(timeout_s)
        if self._is_fresh:
            self.facts["first_token_s"] = self._load.first_token_s(deadline)
            self._is_fresh = False
        seconds = steady_s(lambda: self._load.once(deadline))
        self._num_repetitions = repetitions_for(self._sample_s, seconds)
        self.facts["repetitions"] = self._num_repetitions

    def sample(self, seed: int, timeout_s: float) -> Measured:
        """Measure once; raises WorkerDied also where another worker has taken a dead one's place meanwhile."""
        deadline = Deadline(timeout_s)
        self._load.wake(deadline)
        before = self._figures(deadline)
        pids = [int(worker["pid"]) for worker in before]
        with no_collection(), Watch(pids) as watch:
            started_at = time.time()
            repetitions = self._load.run(seed, self._num_repetitions, self._sample_s, deadline)
        after = self._figures(deadline)
        if [int(worker["pid"]) for worker in after] != pids:
            raise WorkerDied("a worker ended while it was measured, so the sample was dropped: measure it again")
        metrics = {
            **metrics_of(repetitions, self._objective),
            **watch.use(),
            "decode_share": _gained(before, after, "decode_s") / _gained(before, after, "loop_s"),
            "pss_bytes": sum(worker["pss_bytes"] for worker in after),
            "private_bytes": sum(worker["private_bytes"] for worker in after),
        }
        if self._has_parts:
            self._add_parts({name: _gained(before, after, name) for name in after[0]}, repetitions)
        return Measured(started_at, watch.seconds, metrics, watch.values(), watch.flag(), watch.programs())

    def _add_parts(self, gained: Mapping[str, float], repetitions: list[Repetition]) -> None:
        wall_s = sum(map(seconds_of, repetitions))
        num_tokens = sum(len(request.tokens) for repetition in repetitions for request in repetition[0])
        self._parts.add(seconds_of_pool(gained, wall_s), wall_s, num_tokens)
        self.facts |= self._parts.facts()

    def _figures(self, deadline: Deadline) -> list[dict[str, float]]:
        try:
            return self.pool.measure(deadline.left_s)
        except JobTimeout as error:
            raise BenchTimeout(f"the workers said nothing within {deadline.timeout_s:g} s: they hang") from error

    def close(self) -> None:
        """Close the pool, whoever else uses it."""
        self.pool.close()


def open_pool_target(
    cell: Cell, opening: Opening | None = None, *, pool: Pool | None = None, sample_s: float = SAMPLE_S
) -> PoolTarget:
    """A target on `pool`, else on a new one, whose file is read into the page cache first.

    Raises ModelError, MemoryRefused or ConfigError, and what ends the `opening`.
    """
    if pool is not None:
        return PoolTarget(cell, pool, sample_s=sample_s)
    _warm(cell.model)
    opened = _open_pool(cell, opening)
    facts = {
        "load_warm_s": opened.startup.load_s,
        "interpreter_s": opened.startup.interpreter_s,
        "rest_s": opened.startup.rest_s,
    }
    try:
        return PoolTarget(cell, opened, facts, is_fresh=True, sample_s=sample_s)
    except BaseException:
        opened.close()
        raise


def load_cold(cell: Cell, opening: Opening | None = None) -> dict[str, float]:
    """Load the cell's model once with its file out of the page cache; load_cold_s, first_token_cold_s, resident_share.

    resident_share is what the page cache held nevertheless, as it must where another process has the file mapped.
    Raises as open_pool_target does, and BenchTimeout where the first token takes more than COLD_TIMEOUT_S seconds.
    """
    files = read_model(cell.model).files
    for file in files:
        page_cache.drop(file)
    share = page_cache.resident_share_of(files)
    with _open_pool(cell, opening) as pool:
        return {
            "load_cold_s": pool.startup.load_s,
            "first_token_cold_s": Load(pool, cell.workload).first_token_s(Deadline(COLD_TIMEOUT_S)),
            "resident_share": share,
        }


def _open_pool(cell: Cell, opening: Opening | None) -> Pool:
    return Pool(cell.model, **asdict(cell.pool), build=cell.build, on_opening=(opening or Opening()).begins)


def _warm(model: str) -> None:
    """Read the model's files where they fit; what is wrong with them the pool says better."""
    with suppress(ModelError, OSError):
        file = read_model(model)
        if file.size < available_memory():
            for part in file.files:
                page_cache.warm(part)


def steady_s(once: Callable[[], float]) -> float:
    """Seconds of a repetition, which `once` runs, when they are steady or enough were run."""
    began, before = time.monotonic(), math.inf
    for _repetition in range(_MOST_WARM_UPS):
        seconds = once()
        if abs(seconds - before) <= _STEADY * seconds or time.monotonic() - began > _WARM_UP_S:
            break
        before = seconds
    return seconds


def repetitions_for(sample_s: float, seconds: float) -> int:
    """Repetitions of `seconds` each that make a sample of `sample_s`, with a margin."""
    return min(_MOST_REPETITIONS, math.ceil(_MARGIN * sample_s / seconds))


@contextmanager
def no_collection() -> Iterator[None]:
    """Python collects no garbage inside the block: a collection would stop every thread of this process."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _gained(before: list[dict[str, float]], after: list[dict[str, float]], name: str) -> float:
    return sum(worker[name] for worker in after) - sum(worker[name] for worker in before)
