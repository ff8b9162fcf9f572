"""Load-order measurement: loads two models in the order A, B, A and checks whether B evicts A from the page cache."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from engine.bench.measurement.clients import Deadline
from engine.bench.measurement.load_generator import LoadGenerator
from engine.bench.measurement.load_timeout import LoadTimeout, patience_s
from engine.bench.measurement.target import COLD_TIMEOUT_S
from engine.bench.planning.plan import Workload
from engine.errors import ConfigError
from engine.jsonable import figure
from engine.machine import page_cache
from engine.machine.cores import threads_for
from engine.models.gguf import ModelFile
from engine.models.reading import read_model
from engine.opening import open_engine
from engine.specs import PoolSpec
from engine.units import quantity

PUSHED_OUT = 0.1
"""Share of pages: a model that lost more was evicted; one with less resident is loaded from disk."""

ORDER = ("A", "B", "A")
_PROMPT = 16


class LoadStep(NamedTuple):
    """One load of the model `name`, "A" or "B".

    load_s: seconds of the load; first_token_s: seconds from the submission to the first token; before, after: share of
    each model in the page cache, 0 to 1, just before the load, and after the workers have ended. NaN where the system
    does not report it.
    """

    name: str
    load_s: float
    first_token_s: float
    before: dict[str, float]
    after: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        shares = {
            name: {of: figure(share) for of, share in getattr(self, name).items()} for name in ("before", "after")
        }
        return {"name": self.name, "load_s": self.load_s, "first_token_s": self.first_token_s, **shares}


@dataclass(frozen=True)
class LoadOrder:
    """Result of three loads in the order A, B, A; both files were evicted from the page cache before the first."""

    a: Path
    b: Path
    steps: list[LoadStep]

    @property
    def left(self) -> float:
        """Share of A that was still in memory after B had been loaded."""
        return self.steps[1].after["A"]

    @property
    def is_pushed_out(self) -> bool:
        """True where B evicted A; False also where the system does not report it."""
        return self.steps[0].after["A"] - self.left > PUSHED_OUT

    @property
    def says(self) -> str:
        """Result in one or two sentences."""
        first, second, third = self.steps
        times = (
            f"A loaded in {quantity(first.load_s, 's')}{_from(first.before['A'])}, "
            f"B in {quantity(second.load_s, 's')}, A again in {quantity(third.load_s, 's')}."
        )
        if math.isnan(self.left):
            return f"This system does not report what is in the page cache. {times}"
        left = f"{quantity(self.left, '')} of A was still in memory after B."
        return f"{'B evicted A' if self.is_pushed_out else 'Both fit in memory'}: {left} {times}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a share that the system does not report is None."""
        return {
            "a": str(self.a),
            "b": str(self.b),
            "steps": [step.to_dict() for step in self.steps],
            "left": figure(self.left),
            "is_pushed_out": self.is_pushed_out,
            "says": self.says,
        }


def measure_load_order(
    a: str | Path,
    b: str | Path,
    spec: PoolSpec | None = None,
    *,
    on_step: Callable[[LoadStep], object] = lambda _step: None,
    on_opening: Callable[[LoadTimeout], object] = lambda _opening: None,
    on_progress: Callable[[float], object] = lambda _share: None,
) -> LoadOrder:
    """Load A, B and A again, each in a pool that ends before the next begins, and generate one token with each.

    `spec` is one sequence by default. `on_step` receives each step as it is measured; `on_opening` the timeout of the
    step that is about to begin, whose stop() ends it; `on_progress` 0 to 1, by the bytes of the files loaded. Raises
    ConfigError for the same model twice, ModelError, MemoryRefused, BenchTimeout, and PoolClosed after stop().
    """
    files = {"A": read_model(a), "B": read_model(b)}
    if files["A"].path.samefile(files["B"].path):
        raise ConfigError(f"{files['A'].path} is both A and B: choose two different models")
    for file in files.values():
        for path in file.files:
            page_cache.drop(path)
    # a measured pool keeps its number of threads
    chosen = spec or PoolSpec(parallel=1)
    chosen = replace(chosen, threads=chosen.threads or threads_for(chosen.instances))
    total = sum(files[name].size for name in ORDER)
    steps: list[LoadStep] = []
    for name in ORDER:
        loaded = sum(files[step.name].size for step in steps)
        tell = partial(_tell, on_progress, loaded / total, files[name].size / total)
        timeout = LoadTimeout(patience_s(files[name].size))
        on_opening(timeout)
        steps.append(_load(name, files, chosen, timeout, tell))
        on_step(steps[-1])
    return LoadOrder(files["A"].path, files["B"].path, steps)


def _tell(on_progress: Callable[[float], object], before: float, part: float, share: float) -> None:
    on_progress(before + part * share)


def _load(
    name: str, files: dict[str, ModelFile], spec: PoolSpec, timeout: LoadTimeout, on_progress: Callable[[float], object]
) -> LoadStep:
    before = _shares(files)
    asked = Workload(num_prompt=_PROMPT, num_generated=1)
    with timeout:
        engine = open_engine(str(files[name].path), spec, on_progress=on_progress, on_opening=timeout.begins)
        with engine:
            timeout.begins(engine.close)
            first_token_s = LoadGenerator(engine, asked).first_token_s(Deadline(COLD_TIMEOUT_S))
            load_s = engine.startup.load_s
    return LoadStep(name, load_s, first_token_s, before, _shares(files))


def _from(resident: float) -> str:
    """Return where a model with this resident share was loaded from; empty where the share is unknown."""
    if math.isnan(resident):
        return ""
    return " from the disk" if resident < PUSHED_OUT else f" with {quantity(resident, '')} already in memory"


def _shares(files: dict[str, ModelFile]) -> dict[str, float]:
    return {name: page_cache.resident_share_of(file.files) for name, file in files.items()}
