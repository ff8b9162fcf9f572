"""Simulated machine: cores, decode times and the effect of other load on them, for testing thread controllers."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.llama.thread_controller import Decoded, ThreadController

TICK_S = 0.2
"""Interval at which idle cores are read, in seconds."""


class Kind(NamedTuple):
    """Model: seconds per decode by number of threads on free cores; growth: relative increase per token of depth."""

    seconds: dict[int, float]
    growth: float = 0.0


SHARED_OUT = Kind({1: 0.0255, 2: 0.016})
"""1.1 B at Q4_K_M on 2 cores: the second thread makes it 1.6 times as fast."""
BY_MEMORY = Kind({1: 0.0037, 2: 0.0037})
"""200 MB at Q8_0 on the same machine: the second thread gains nothing."""


def scaling(most: int, single_s: float, serial: float = 0.05) -> Kind:
    """Return a model that scales by Amdahl's law."""
    return Kind({n: single_s * (serial + (1 - serial) / n) for n in range(1, most + 1)})


@dataclass
class Program:
    """Program that generates on the machine: its controller (None: a fixed number of threads) and its past decodes."""

    kind: Kind
    controller: ThreadController | None
    fixed: int = 0
    starts_s: float = 0.0
    ends_s: float = math.inf
    sizes: Callable[[int], int] = lambda _number: 1
    now: float = 0.0
    threads: int = 1
    history: list[tuple[float, int, float]] = field(default_factory=list)
    depth: int = 0

    def per_s(self, first_s: float, last_s: float) -> float:
        """Return the tokens per second between two times."""
        return sum(size for at, _threads, size in self.history if first_s <= at < last_s) / (last_s - first_s)

    def used(self, first_s: float, last_s: float) -> list[int]:
        """Return the number of threads of each decode between two times."""
        return [threads for at, threads, _size in self.history if first_s <= at < last_s]


class Machine:
    """Cores, programs and the load of others by time. sees: "all", "own" (no idle cores, as where the system does
    not report them) or "time" alone."""

    def __init__(
        self,
        cores: int,
        programs: list[Program],
        load: Callable[[float], float] = lambda _now: 0.0,
        *,
        sees: str = "all",
        noise: float = 0.03,
        outliers: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.cores, self.programs, self.load, self.sees = cores, programs, load, sees
        self._noise, self._outliers, self._random = noise, outliers, random.Random(seed)
        self._idle: list[tuple[float, float]] = [(0.0, float(cores))]

    def run(self, until_s: float) -> None:
        """Let all programs decode until `until_s`."""
        for program in self.programs:
            program.now = program.starts_s
        while True:
            program = min(self.programs, key=lambda one: one.now)
            if program.now >= until_s:
                return
            self._decode(program)

    def _decode(self, program: Program) -> None:
        number = len(program.history)
        size = program.sizes(number)
        chosen = program.controller.choose(size, is_prompt=False) if program.controller else program.fixed
        program.threads = chosen
        others = self._others(program)
        idle = max(0.0, self.cores - chosen - others)
        self._idle.append((program.now, idle))
        crowd = max(0.0, chosen + others - self.cores)
        alone_s = program.kind.seconds[chosen] * (1 + program.kind.growth * program.depth) * (0.7 + 0.3 * size)
        slowed = self._slowed(chosen, crowd)
        elapsed_s = alone_s * slowed * math.exp(self._random.gauss(0, self._noise))
        if self._random.random() < self._outliers:
            elapsed_s *= 10
        program.now += elapsed_s
        program.depth += 1
        program.history.append((program.now, chosen, size))
        if program.controller:
            program.controller.observe(self._seen(chosen, others, crowd, elapsed_s, program.now))
        if program.now >= program.ends_s:
            program.now = math.inf

    def _others(self, program: Program) -> float:
        now = program.now
        busy = sum(
            one.threads
            for one in self.programs
            if one is not program and one.starts_s <= now < one.ends_s and math.isfinite(one.now)
        )
        return busy + self.load(now)

    def _slowed(self, threads: int, crowd: float) -> float:
        """Return how much longer a decode takes with `crowd` threads too many. As measured on 2 cores: two threads
        beside one busy thread take 4.3 times as long, beside two 7.5 times; one thread only shares its core."""
        if threads == 1:
            return max(1.0, (self.cores + crowd) / self.cores)
        return 1 + 3.3 * min(crowd, 1) + 3.2 * min(max(crowd - 1, 0), 1) + 0.5 * max(crowd - 2, 0)

    def _seen(self, threads: int, others: float, crowd: float, elapsed_s: float, now: float) -> Decoded:
        got = threads * min(1.0, self.cores / (threads + others))
        switches = int(crowd > 0) * max(1, round(elapsed_s / 0.004))
        if self.sees == "time":
            return Decoded(elapsed_s)
        return Decoded(elapsed_s, got, switches, self._idle_lately(now) if self.sees == "all" else math.nan)

    def _idle_lately(self, now: float) -> float:
        first = now - now % TICK_S - TICK_S
        seen = [idle for at, idle in self._idle[-400:] if first <= at < first + TICK_S]
        return sum(seen) / len(seen) if seen else self._idle[-1][1]
