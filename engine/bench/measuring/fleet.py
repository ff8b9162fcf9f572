"""The workers of a run: opened on first use, kept loaded and idle while memory allows, shared where cells can."""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.bench.measuring.target import PoolTarget, Target, load_cold, open_pool_target
from engine.bench.planning.plan import Cell, Workload
from engine.errors import MemoryRefused, ModelError
from engine.models.available import available_memory
from engine.models.gguf import read_model
from engine.models.memory import estimate

WorkerKey = tuple[object, ...]


@dataclass
class _Loaded:
    """Workers that are open: bytes they were reckoned to need, and the targets that use them, by cell and workload."""

    need: int
    targets: dict[tuple[int, Workload], Target] = field(default_factory=dict)

    def close(self) -> None:
        for target in self.targets.values():
            target.close()


class Fleet:
    """Gives each cell its target; used from one thread. Cells with the same worker_key share one pool.

    memory_bytes: what all workers together may take; None: what this machine has available. measures_cold: before
    the first use of a pool its model is loaded once from the disk, which adds load_cold_s to the facts.
    """

    def __init__(
        self,
        open_target: Callable[[Cell], Target] = open_pool_target,
        memory_bytes: int | None = None,
        *,
        measures_cold: bool = False,
    ) -> None:
        self._open_target, self._measures_cold = open_target, measures_cold
        self._memory_bytes = math.inf if memory_bytes is None else memory_bytes
        self._loaded: OrderedDict[WorkerKey, _Loaded] = OrderedDict()
        self._cold: dict[WorkerKey, dict[str, float]] = {}

    def target(self, cell: Cell) -> Target:
        """The cell's target, opened now if it is not. Raises EngineError where it cannot be opened."""
        key = cell.worker_key
        if key not in self._loaded:
            self._load(cell)
        self._loaded.move_to_end(key)
        targets = self._loaded[key].targets
        asked = cell.number, cell.workload
        if asked not in targets:
            shared = next((target for target in targets.values() if isinstance(target, PoolTarget)), None)
            targets[asked] = shared.beside(cell) if shared else self._open_target(cell)
        return targets[asked]

    def drop(self, cell: Cell) -> None:
        """Close the cell's workers, because they died or hang; the next use opens others."""
        loaded = self._loaded.pop(cell.worker_key, None)
        if loaded is not None:
            loaded.close()

    def close(self) -> None:
        """Close all workers."""
        while self._loaded:
            self._loaded.popitem()[1].close()

    def _load(self, cell: Cell) -> None:
        need = _need(cell)
        self._make_room(need)
        if self._measures_cold and cell.arm == "pool" and cell.worker_key not in self._cold:
            self._close_all_of(cell.model)
            self._cold[cell.worker_key] = load_cold(cell)
        target = self._open(cell)
        if isinstance(target, PoolTarget):
            target.facts |= self._cold.get(cell.worker_key, {})
        self._loaded[cell.worker_key] = _Loaded(need, {(cell.number, cell.workload): target})

    def _open(self, cell: Cell) -> Target:
        """Open, and where that is refused for want of memory close the workers longest unused, one after the other."""
        while True:
            try:
                return self._open_target(cell)
            except MemoryRefused:
                if not self._loaded:
                    raise
                self._close_oldest()

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


def _need(cell: Cell) -> int:
    """Bytes that the cell's workers will take; 0 where the file cannot be read, which opening it says better."""
    try:
        return estimate(read_model(cell.model), cell.pool).total
    except ModelError:
        return 0
