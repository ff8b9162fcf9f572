"""Measurement targets: the interface to warm up, sample and close one, and its implementation for an engine."""

import gc
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple, Protocol

from engine.bench.measurement.clients import Deadline
from engine.bench.measurement.load_generator import LoadGenerator
from engine.bench.measurement.load_timeout import LoadTimeout
from engine.bench.measurement.metrics import Repetition, metrics_of, seconds_of
from engine.bench.measurement.token_parts import PartTotals, seconds_of_pool
from engine.bench.planning.plan import Cell
from engine.cluster.specs import ClusterSpec
from engine.errors import BenchTimeout, JobTimeout, ModelError, WorkerDied
from engine.machine import page_cache
from engine.machine.memory import available_memory
from engine.machine.noise import NoiseWatch, flag_of
from engine.models.reading import read_model
from engine.opening import open_engine
from engine.protocol import Engine
from engine.samples import Flag
from engine.units import counted

SAMPLE_S = 1.0
"""Minimum duration of a sample in seconds."""
_STEADY = 0.05
"""Warm-up ends when a repetition takes as long as the previous one, within this share of its time."""
_MOST_WARM_UPS = 8
_WARM_UP_S = 2.0
"""Warm-up ends at the latest after _MOST_WARM_UPS repetitions, or this many seconds."""
COLD_TIMEOUT_S = 600.0

_MARGIN = 1.1
_MOST_REPETITIONS = 10_000


class Measured(NamedTuple):
    """One sample. started_at: Unix seconds; metrics by the names of METRICS, noise by those of SYSTEM_NOISE.

    programs: cores used by other programs, by name.
    """

    started_at: float
    duration_s: float
    metrics: Mapping[str, float]
    noise: Mapping[str, float]
    flag: Flag
    programs: Mapping[str, float] = MappingProxyType({})


class Target(Protocol):
    """One configuration with its workers loaded.

    facts: figures measured once (see CellRecord), set by warm_up(). remark: what a reader of the figures must know of
    how they were measured, empty without one.
    """

    @property
    def facts(self) -> Mapping[str, float]: ...

    @property
    def remark(self) -> str: ...

    def warm_up(self, timeout_s: float) -> None:
        """Run requests until the time of a repetition is steady, within a limit.

        Raises BenchTimeout after `timeout_s` seconds, or the EngineError that ended a request.
        """

    def sample(self, seed: int, timeout_s: float) -> Measured:
        """Measure once; the same seed sends the same requests. Raises as warm_up() does."""

    def close(self) -> None:
        """End the workers; safe to call twice, where they hang, and from another thread, where sample() then raises."""


class EngineTarget:
    """Target whose requests an engine answers; other configurations may use the same engine, one at a time.

    facts: those given, which belong to the engine; warm_up() adds `first_token_s` of a fresh engine and `repetitions`;
    for a single stream also the parts of the time per token (see `time_breakdown`) over all samples so far.
    """

    remark = ""

    def __init__(
        self,
        cell: Cell,
        engine: Engine,
        facts: Mapping[str, float] | None = None,
        *,
        is_fresh: bool = False,
        sample_s: float = SAMPLE_S,
    ) -> None:
        self.engine = engine
        self.facts = dict(facts or {})
        self._load = LoadGenerator(engine, cell.workload)
        self._objective = cell.objective
        self._is_fresh, self._sample_s = is_fresh, sample_s
        self._num_repetitions = 1
        self._nodes = Counter(worker.node for worker in engine.workers())
        self._is_here = not any(self._nodes)
        self._parts = PartTotals()
        self._has_parts = cell.pool.instances == cell.pool.parallel == 1 and not cell.workload.depth

    def beside(self, cell: Cell) -> "EngineTarget":
        """Return a target on the same workers for a configuration that differs only in its requests."""
        facts = {name: value for name, value in self.facts.items() if name != "repetitions"}
        return EngineTarget(cell, self.engine, facts, sample_s=self._sample_s)

    def warm_up(self, timeout_s: float) -> None:
        """Repeat until steady, and compute the number of repetitions for one sample."""
        deadline = Deadline(timeout_s)
        if self._is_fresh:
            self.facts["first_token_s"] = self._load.first_token_s(deadline)
            self._is_fresh = False
        seconds = steady_s(lambda: self._load.once(deadline))
        self._num_repetitions = repetitions_for(self._sample_s, seconds)
        self.facts["repetitions"] = self._num_repetitions

    def sample(self, seed: int, timeout_s: float) -> Measured:
        """Measure once; raises WorkerDied also where a worker is missing, or another has replaced a dead one."""
        deadline = Deadline(timeout_s)
        self._load.wake(deadline)
        before = self._figures(deadline)
        self._check_all_live(len(before))
        pids = [int(worker["pid"]) for worker in before]
        with no_collection(), NoiseWatch(pids if self._is_here else ()) as watch:
            started_at = time.time()
            repetitions = self._load.run(seed, self._num_repetitions, self._sample_s, deadline)
        after = self._figures(deadline)
        if [int(worker["pid"]) for worker in after] != pids:
            raise WorkerDied("a worker exited during the measurement, so the sample was dropped: measure again")
        metrics = {
            **metrics_of(repetitions, self._objective),
            **(watch.use() if self._is_here else {}),
            "decode_share": _gained(before, after, "decode_s") / _gained(before, after, "loop_s"),
            "pss_bytes": sum(worker["pss_bytes"] for worker in after),
            "private_bytes": sum(worker["private_bytes"] for worker in after),
        }
        if self._has_parts:
            self._add_parts({name: _gained(before, after, name) for name in after[0]}, repetitions)
        if self._is_here:
            noise, flag, programs = watch.values(), watch.flag(), watch.programs()
        else:  # nodes may be on this machine, where their workers are other programs
            (noise, flag), programs = without_others(watch.values(), watch.seconds), {}
        return Measured(started_at, watch.seconds, metrics, noise, flag, programs)

    def _check_all_live(self, num_live: int) -> None:
        """Raise WorkerDied where workers are missing, with the nodes that they ran on."""
        num_asked = self.engine.spec.instances
        if num_live < num_asked:
            lost = self._nodes - Counter(worker.node for worker in self.engine.workers())
            where = f" (lost: node {', node '.join(names)})" if (names := sorted(filter(None, lost))) else ""
            raise WorkerDied(
                f"only {num_live} of {counted(num_asked, 'worker')} run{where}, so nothing was measured: measure again "
                "once all run"
            )

    def _add_parts(self, gained: Mapping[str, float], repetitions: list[Repetition]) -> None:
        wall_s = sum(map(seconds_of, repetitions))
        num_tokens = sum(len(request.tokens) for repetition in repetitions for request in repetition[0])
        self._parts.add(seconds_of_pool(gained, wall_s), wall_s, num_tokens)
        self.facts |= self._parts.facts()

    def _figures(self, deadline: Deadline) -> list[dict[str, float]]:
        try:
            return self.engine.measure(deadline.left_s)
        except JobTimeout as error:
            raise BenchTimeout(f"the workers did not respond within {deadline.timeout_s:g} s: they hang") from error

    def close(self) -> None:
        """Close the engine, even where other targets use it."""
        self.engine.close()


def open_engine_target(
    cell: Cell,
    timeout: LoadTimeout | None = None,
    *,
    engine: Engine | None = None,
    cluster: ClusterSpec | None = None,
    sample_s: float = SAMPLE_S,
) -> EngineTarget:
    """Return a target on `engine`, or on a new one after reading its file into the page cache.

    cluster: where a new one runs, with all cores of each node; None: here, as the configuration says.
    Raises ModelError, MemoryRefused or ConfigError, and the error of an ended `timeout`.
    """
    if engine is not None:
        return EngineTarget(cell, engine, sample_s=sample_s)
    if cluster is None:
        warm(cell.model)
        opened = _open(cell, timeout)
    else:
        spec = replace(cell.pool, threads=None, threads_batch=None)
        begins = (timeout or LoadTimeout()).begins
        opened = open_engine(cell.model, spec, build=cell.build, cluster=cluster, on_opening=begins)
    facts = {
        "load_warm_s": opened.startup.load_s,
        "interpreter_s": opened.startup.interpreter_s,
        "rest_s": opened.startup.rest_s,
    }
    try:
        return EngineTarget(cell, opened, facts, is_fresh=True, sample_s=sample_s)
    except BaseException:
        opened.close()
        raise


def load_cold(cell: Cell, timeout: LoadTimeout | None = None) -> dict[str, float]:
    """Load the configuration's model once with its file evicted from the page cache; return the figures by name.

    load_cold_s and first_token_cold_s are in seconds; resident_share is the share that stayed in the page cache, as it
    must where another process has the file mapped. Raises as open_engine_target does, and BenchTimeout where the first
    token takes more than COLD_TIMEOUT_S seconds.
    """
    files = read_model(cell.model).files
    for file in files:
        page_cache.drop(file)
    share = page_cache.resident_share_of(files)
    with _open(cell, timeout) as engine:
        return {
            "load_cold_s": engine.startup.load_s,
            "first_token_cold_s": LoadGenerator(engine, cell.workload).first_token_s(Deadline(COLD_TIMEOUT_S)),
            "resident_share": share,
        }


def _open(cell: Cell, timeout: LoadTimeout | None) -> Engine:
    return open_engine(cell.model, cell.pool, build=cell.build, on_opening=(timeout or LoadTimeout()).begins)


def warm(model: str) -> None:
    """Read the model's files into memory where they fit; opening them reports errors better."""
    with suppress(ModelError, OSError):
        file = read_model(model)
        if file.size < available_memory():
            for part in file.files:
                page_cache.warm(part)


def steady_s(once: Callable[[], float]) -> float:
    """Return the seconds of a repetition, run by `once`, when they are steady or the warm-up limit is reached."""
    began, before = time.monotonic(), math.inf
    for _repetition in range(_MOST_WARM_UPS):
        seconds = once()
        if abs(seconds - before) <= _STEADY * seconds or time.monotonic() - began > _WARM_UP_S:
            break
        before = seconds
    return seconds


def repetitions_for(sample_s: float, seconds: float) -> int:
    """Return how many repetitions of `seconds` each make a sample of `sample_s`, with a margin."""
    return min(_MOST_REPETITIONS, math.ceil(_MARGIN * sample_s / seconds))


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable garbage collection inside the block: a collection would stop every thread of this process."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def without_others(noise: dict[str, float], seconds: float) -> tuple[dict[str, float], Flag]:
    """Return the noise without other programs, of which a server may be one, and the flag of the rest."""
    known = {**noise, "other_cores": math.nan}
    return known, flag_of(known, seconds, 1)


def _gained(before: list[dict[str, float]], after: list[dict[str, float]], name: str) -> float:
    return sum(worker[name] for worker in after) - sum(worker[name] for worker in before)
