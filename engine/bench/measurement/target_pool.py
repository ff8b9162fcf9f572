"""Target pool: opens a run's workers on first use, keeps them loaded while memory allows, shares them if possible."""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from engine.bench.measurement.embedding import EmbeddingTarget
from engine.bench.measurement.load_timeout import LoadTimeout, patience_s
from engine.bench.measurement.server_target import ServerTarget
from engine.bench.measurement.target import COLD_TIMEOUT_S, EngineTarget, Target, load_cold, open_engine_target
from engine.bench.planning.embedding_guesses import weights_bytes
from engine.bench.planning.feasibility import Feasibility
from engine.bench.planning.plan import Cell, EmbeddingCell, PlannedCell
from engine.embedding.models import find_model
from engine.errors import MemoryRefused, ModelError
from engine.machine.memory import available_memory
from engine.models.reading import read_model
from engine.validation import Spec

WorkerKey = tuple[object, ...]


@dataclass
class _Loaded:
    """Open workers: their estimated memory in bytes, and the targets that use them, by configuration and workload."""

    need: int
    targets: dict[tuple[int, Spec], Target] = field(default_factory=dict)

    def close(self) -> None:
        for target in self.targets.values():
            target.close()


class TargetPool:
    """Targets by configuration; configurations with the same worker_key share one pool. Not thread-safe but for stop().

    memory_bytes: memory limit of all workers together; None: what this machine has available. feasibility: of the plan;
    None: of one that runs on this machine. measures_cold: before the first use of a pool its model is loaded once from
    disk, which adds the figures of `load_cold` to the facts. more_s: seconds that a load may take beyond those of a
    file of this machine.
    """

    def __init__(
        self,
        open_target: Callable[[Any, LoadTimeout], Target] = open_engine_target,
        memory_bytes: int | None = None,
        *,
        feasibility: Feasibility | None = None,
        measures_cold: bool = False,
        more_s: float = 0.0,
    ) -> None:
        self._open_target, self._measures_cold = open_target, measures_cold
        self._feasibility = feasibility or Feasibility()
        self._memory_bytes = math.inf if memory_bytes is None else memory_bytes
        self._loaded: OrderedDict[WorkerKey, _Loaded] = OrderedDict()
        self._more_s = more_s
        self._cold: dict[WorkerKey, dict[str, float]] = {}
        self._load_timeout: LoadTimeout | None = None
        self._lock = threading.Lock()
        self._is_stopped = False

    def target(self, cell: PlannedCell) -> Target:
        """Return the configuration's target, opening it if needed.

        Raises EngineError where it cannot be opened, BenchTimeout where its model does not load in time, PoolClosed
        after stop().
        """
        key = cell.worker_key
        if key not in self._loaded:
            self._load(cell)
        self._loaded.move_to_end(key)
        targets = self._loaded[key].targets
        asked = cell.number, cell.workload
        if asked not in targets:
            targets[asked] = _beside(next(iter(targets.values()), None), cell) or self._open(cell)
        return targets[asked]

    def drop(self, cell: PlannedCell) -> None:
        """Close the configuration's workers, which died or hang; the next use opens new ones."""
        loaded = self._loaded.pop(cell.worker_key, None)
        if loaded is not None:
            loaded.close()

    def close(self) -> None:
        """Close all workers."""
        while self._loaded:
            self._loaded.popitem()[1].close()

    def stop(self) -> None:
        """End a load in progress and prevent further ones; callable from any thread."""
        with self._lock:
            self._is_stopped, timeout = True, self._load_timeout
        if timeout is not None:
            timeout.stop()

    def _load(self, cell: PlannedCell) -> None:
        need = self._need(cell)
        self._make_room(need)
        is_measured = not self._measures_cold or cell.worker_key in self._cold
        if not is_measured and isinstance(cell, Cell) and cell.arm == "pool":
            self._close_all_of(cell.model)
            with self._timeout_of(cell, COLD_TIMEOUT_S) as timeout:
                self._cold[cell.worker_key] = load_cold(cell, timeout)
        target = self._open(cell)
        if isinstance(target, EngineTarget):
            target.facts |= self._cold.get(cell.worker_key, {})
        self._loaded[cell.worker_key] = _Loaded(need, {(cell.number, cell.workload): target})

    def _open(self, cell: PlannedCell) -> Target:
        """Open a target; where memory does not suffice, close the least recently used workers one by one and retry."""
        while True:
            try:
                with self._timeout_of(cell) as timeout:
                    return self._open_target(cell, timeout)
            except MemoryRefused:
                if not self._loaded:
                    raise
                self._close_oldest()

    @contextmanager
    def _timeout_of(self, cell: PlannedCell, more_s: float = 0.0) -> Iterator[LoadTimeout]:
        """Limit the time of a load, which stop() can also end. more_s: allowance for work beyond loading."""
        with self._lock:
            self._load_timeout = timeout = LoadTimeout(patience_s(_size(cell)) + more_s + self._more_s)
            if self._is_stopped:
                timeout.stop()
        try:
            with timeout:
                yield timeout
        finally:
            self._load_timeout = None

    def _need(self, cell: PlannedCell) -> int:
        """Return the bytes that the workers will use here; 0 for an unreadable file (reported on loading)."""
        need = self._feasibility.need(cell)
        return need.total if need else 0

    def _make_room(self, need: int) -> None:
        while self._loaded and need > self._left():
            self._close_oldest()

    def _left(self) -> float:
        used = sum(loaded.need for loaded in self._loaded.values())
        return min(self._memory_bytes - used, available_memory())

    def _close_oldest(self) -> None:
        """Close the workers that were used the longest ago, and that take memory here if any do."""
        oldest = next((key for key, loaded in self._loaded.items() if loaded.need), next(iter(self._loaded)))
        self._loaded.pop(oldest).close()

    def _close_all_of(self, model: str) -> None:
        """Close all workers of a model: a file that a process has mapped stays in the page cache."""
        for key in [key for key in self._loaded if key[0] == model]:
            self._loaded.pop(key).close()


def _beside(shared: Target | None, cell: PlannedCell) -> Target | None:
    """Return a target for `cell` on the workers of another configuration; None where they cannot be shared."""
    if isinstance(shared, EngineTarget | ServerTarget) and isinstance(cell, Cell):
        return shared.beside(cell)
    if isinstance(shared, EmbeddingTarget) and isinstance(cell, EmbeddingCell):
        return shared.beside(cell)
    return None


def _size(cell: PlannedCell) -> int:
    """Return the bytes of the configuration's model; 0 where it cannot be read."""
    try:
        if isinstance(cell, EmbeddingCell):
            return weights_bytes(find_model(cell.model))
        return read_model(cell.model).size
    except ModelError:
        return 0
