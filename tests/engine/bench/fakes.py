"""Simulated machine: a clock that advances only when something takes time, and targets of known speed."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from engine.bench.measurement.target import Measured
from engine.bench.planning.plan import Cell, PlannedCell, Workload
from engine.errors import EngineError
from engine.runs import CellRecord
from engine.samples import Flag, Samples, no_samples
from engine.specs import PoolSpec
from tests.waiting import Clock

LOAD_S = 2.5


class FakeTarget:
    """Target with its pool's `speed` in tokens per second and log-normal noise; a sample lasts at least one second."""

    remark = ""

    def __init__(self, cell: Cell, machine: "FakeTargetPool") -> None:
        self.cell = cell
        self.facts: Mapping[str, float] = {"repetitions": 1.0}
        self.is_warm = False
        self.num_closed = 0
        self._machine = machine

    def warm_up(self, timeout_s: float) -> None:
        seconds = self._machine.seconds(self.cell)
        self._machine.clock.now += seconds if seconds > 2 else 2 * seconds
        self.is_warm = True

    def sample(self, seed: int, timeout_s: float) -> Measured:
        assert self.is_warm and not self.num_closed
        return self._machine.sample(self, seed)

    def close(self) -> None:
        self.num_closed += 1


class FakeTargetPool:
    """Pool of fake targets. speed: the true speed of a cell; errors: what the n-th sample of a cell raises.

    drift: factor on the machine's speed at a given time; flags: the disturbance of the n-th sample of all; programs:
    the cores that other programs use during it.
    """

    def __init__(
        self,
        speed: Callable[[Cell], float],
        clock: Clock,
        *,
        noise: float = 0.0,
        seed: int = 0,
        errors: Mapping[tuple[int, int], EngineError] | None = None,
        drift: Callable[[float], float] = lambda _now: 1.0,
        flags: Mapping[int, Flag] | None = None,
        programs: Mapping[int, Mapping[str, float]] | None = None,
    ) -> None:
        self.clock = clock
        self.targets: dict[tuple[int, Workload], FakeTarget] = {}
        self.asked: list[tuple[int, int]] = []
        self.dropped: list[int] = []
        self.during: Callable[[FakeTarget], None] = lambda _target: None
        self._speed, self._noise, self._drift = speed, noise, drift
        self._errors = dict(errors or {})
        self._flags, self._programs = flags or {}, programs or {}
        self._random = np.random.default_rng(seed)
        self._loaded: set[int] = set()

    def target(self, cell: PlannedCell) -> FakeTarget:
        assert isinstance(cell, Cell)
        if cell.number not in self._loaded:
            self.clock.now += LOAD_S
            self._loaded.add(cell.number)
        return self.targets.setdefault((cell.number, cell.workload), FakeTarget(cell, self))

    def drop(self, cell: PlannedCell) -> None:
        self.dropped.append(cell.number)
        self._loaded.discard(cell.number)
        self.targets = {key: target for key, target in self.targets.items() if key[0] != cell.number}

    def stop(self) -> None: ...

    def seconds(self, cell: Cell) -> float:
        """Return the duration of one repetition: the prompts at four times the token speed, then the tokens."""
        streams = cell.pool.instances * cell.pool.parallel
        speed = self._speed(cell)
        return streams * (cell.workload.num_prompt / (4 * speed) + cell.workload.num_generated / speed)

    def sample(self, target: FakeTarget, seed: int) -> Measured:
        cell = target.cell
        self.asked.append((cell.number, seed))
        self.during(target)
        error = self._errors.pop((cell.number, sum(number == cell.number for number, _seed in self.asked)), None)
        if error is not None:
            raise error
        speed = self._speed(cell) * self._drift(self.clock.now) * math.exp(self._noise * self._random.standard_normal())
        one = self.seconds(cell) * self._speed(cell) / speed
        seconds = one * math.ceil(1 / one)
        started = self.clock.now
        self.clock.now += seconds
        metrics = {"tokens_per_s": speed, "pss_bytes": 1e6 * cell.pool.instances * cell.pool.parallel}
        number = len(self.asked)
        return Measured(started, seconds, metrics, {}, self._flags.get(number, "clean"), self._programs.get(number, {}))


class Kept:
    """Reporter that records its calls."""

    def __init__(self) -> None:
        self.cells: list[CellRecord] = []
        self.samples: Samples = no_samples()

    def cell(self, record: CellRecord) -> None:
        self.cells.append(record)

    def sample(self, sample: Samples) -> None:
        self.samples = np.concatenate([self.samples, sample])

    def replaced(self, positions: list[int]) -> None:
        self.samples["is_replaced"][np.isin(self.samples["position"], positions)] = True


def cell(number: int, **settings: object) -> Cell:
    """Return a cell with the given settings and no real model."""
    names = {name: value for name, value in settings.items() if name in ("parallel", "share_weights", "n_ubatch")}
    instances, threads = map(int, str(settings.get("layout", "1x1")).split("x"))
    return Cell(
        number=number,
        label=", ".join(f"{name} {value}" for name, value in settings.items()),
        model="none.gguf",
        build="",
        arm="pool",
        pool=PoolSpec(instances=instances, threads=threads, **names),  # type: ignore[arg-type]
        workload=Workload(num_prompt=8, num_generated=32),
        settings=settings,
    )


def cells(num: int) -> Sequence[Cell]:
    """Return cells that differ only in their number of sequences."""
    return [cell(number, layout="1x1", parallel=number + 1) for number in range(num)]
