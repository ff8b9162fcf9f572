"""The workers of a run: opened on first use, kept loaded and idle while memory allows, shared where cells can."""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from engine.bench.measuring.embedding import EmbeddingTarget
from engine.bench.measuring.opening import Opening, patience_s
from engine.bench.measuring.target import COLD_TIMEOUT_S, PoolTarget, Target, load_cold, open_pool_target
from engine.bench.planning.embedding_guesses import weights_bytes
from engine.bench.planning.feasibility import Feasibility
from engine.bench.planning.plan import Cell, EmbeddingCell, PlannedCell
from engine.embedding.models import find_model
from engine.errors import MemoryRefused, ModelError
from engine.models.available import available_memory
from engine.models.gguf import read_model
from engine.specs import Spec

WorkerKey = tuple[object, ...]


@dataclass
class _Loaded:
    """Workers that are open: bytes they were reckoned to need, and the targets that use them, by cell and workload."""

    need: int
    targets: dict[tuple[int, Spec], Target] = field(default_factory=dict)

    def close(self) -> None:
        for target in self.targets.values():
            target.close()


class Fleet:
    """Gives each cell its target; used from one thread but for stop(). Cells with the same worker_key share one pool.

    memory_bytes: what all workers together may take; None: what this machine has available. measures_cold: before
    the first use of a pool its model is loaded once from the disk, which adds load_cold_s to the facts.
    """

    def __init__(
        self,
        open_target: Callable[[Any, Opening], Target] = open_pool_target,
        memory_bytes: int | None = None,
        *,
        measures_cold: bool = False,
    ) -> None:
        self._open_target, self._measures_cold = open_target, measures_cold
        self._memory_bytes = math.inf if memory_bytes is None else memory_bytes
        self._loaded: OrderedDict[WorkerKey, _Loaded] = OrderedDict()
        self._cold: dict[WorkerKey, dict[str, float]] = {}
        self._opening: Opening | None = None
        self._lock = threading.Lock()
        self._is_stopped = False

    def target(self, cell: PlannedCell) -> Target:
        """The cell's target, opened now if it is not.

        Raises EngineError where it cannot be opened; BenchTimeout where its model does not get loaded, PoolClosed after
        stop().
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
        """Close the cell's workers, because they died or hang; the next use opens others."""
        loaded = self._loaded.pop(cell.worker_key, None)
        if loaded is not None:
            loaded.close()

    def close(self) -> None:
        """Close all workers."""
        while self._loaded:
            self._loaded.popitem()[1].close()

    def stop(self) -> None:
        """Load nothing any more, and end a load in progress; from any thread."""
        with self._lock:
            self._is_stopped, opening = True, self._opening
        if opening is not None:
            opening.stop()

    def _load(self, cell: PlannedCell) -> None:
        need = _need(cell)
        self._make_room(need)
        is_measured = not self._measures_cold or cell.worker_key in self._cold
        if not is_measured and isinstance(cell, Cell) and cell.arm == "pool":
            self._close_all_of(cell.model)
            with self._opening_of(cell, COLD_TIMEOUT_S) as opening:
                self._cold[cell.worker_key] = load_cold(cell, opening)
        target = self._open(cell)
        if isinstance(target, PoolTarget):
            target.facts |= self._cold.get(cell.worker_key, {})
        self._loaded[cell.worker_key] = _Loaded(need, {(cell.number, cell.workload): target})

    def _open(self, cell: PlannedCell) -> Target:
        """Open, and where that is refused for want of memory close the workers longest unused, one after the other."""
        while True:
            try:
                with self._opening_of(cell) as opening:
                    return self._open_target(cell, opening)
            except MemoryRefused:
                if not self._loaded:
                    raise
                self._close_oldest()

    @contextmanager
    def _opening_of(self, cell: PlannedCell, more_s: float = 0.0) -> Iterator[Opening]:
        """A load that stop() ends. more_s: what it may take beyond loading."""
        with self._lock:
            self._opening = opening = Opening(patience_s(_size(cell)) + more_s)
            if self._is_stopped:
                opening.stop()
        try:
            with opening:
                yield opening
        finally:
            self._opening = None

    def _make_room(self, need: int) -> None:
        while self._loaded and need > self._left():
            self._close_oldest()

    def _left(self) -> float:
        used = sum(loaded.need for loaded in self._loaded.values())
        return min(self._memory_bytes - used, available_memory())

    def _close_oldest(self) -> None:
        self._loaded.popitem(last=False)[1].close()

    def _close_all_of(self, model: str) -> None:
        """A file that a process has mapped stays in the page cache."""
        for key in [key for key in self._loaded if key[0] == model]:
            self._loaded.pop(key).close()


def _beside(shared: Target | None, cell: PlannedCell) -> Target | None:
    """A target of `cell` on the workers of another one; None where there are none that can be shared."""
    if isinstance(shared, PoolTarget) and isinstance(cell, Cell):
        return shared.beside(cell)
    if isinstance(shared, EmbeddingTarget) and isinstance(cell, EmbeddingCell):
        return shared.beside(cell)
    return None


def _size(cell: PlannedCell) -> int:
    """Bytes of the cell's model; 0 where it cannot be read."""
    try:
        if isinstance(cell, EmbeddingCell):
            return weights_bytes(find_model(cell.model))
        return read_model(cell.model).size
    except ModelError:
        return 0


def _need(cell: PlannedCell) -> int:
    """Bytes that the cell's workers will take; 0 where the file cannot be read, which opening it says better."""
    need = Feasibility().need(cell)
    return need.total if need else 0
