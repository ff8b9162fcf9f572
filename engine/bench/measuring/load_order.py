"""Two models loaded one after the other, A, B, A: whether the second pushes the first out of the page cache."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from engine.bench.measuring import page_cache
from engine.bench.measuring.clients import Deadline
from engine.bench.measuring.load import Load
from engine.bench.measuring.opening import Opening, patience_s
from engine.bench.measuring.target import COLD_TIMEOUT_S
from engine.bench.planning.plan import Workload
from engine.errors import ConfigError
from engine.jsonable import figure
from engine.models.gguf import ModelFile, read_model
from engine.pool.placement import threads_for
from engine.pool.pool import Pool
from engine.specs import PoolSpec
from engine.units import quantity

PUSHED_OUT = 0.1
"""A model that lost more than this share of its pages was pushed out; one with less of them comes from the disk."""

ORDER = ("A", "B", "A")
_PROMPT = 16


class LoadStep(NamedTuple):
    """One load. name: "A" or "B"; seconds of the load and from the submit to the first token; of each model the share
    in the page cache, 0 to 1, just before, and after the workers have ended. NaN where the system does not tell.
    """

    name: str
    load_s: float
    first_token_s: float
    before: dict[str, float]
    after: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        shares = {
            name: {of: figure(share) for of, share in getattr(self, name).items()} for name in ("before", "after")
        }
        return {"name": self.name, "load_s": self.load_s, "first_token_s": self.first_token_s, **shares}


@dataclass(frozen=True)
class LoadOrder:
    """What three loads in the order A, B, A gave; both files were dropped from the page cache before the first."""

    a: Path
    b: Path
    steps: list[LoadStep]

    @property
    def left(self) -> float:
        """Share of A that was still in memory after B had been loaded."""
        return self.steps[1].after["A"]

    @property
    def is_pushed_out(self) -> bool:
        """True when B took the place of A; False also where the system does not tell."""
        return self.steps[0].after["A"] - self.left > PUSHED_OUT

    @property
    def says(self) -> str:
        """What came out, in a sentence or two."""
        first, second, third = self.steps
        times = (
            f"A was loaded in {quantity(first.load_s, 's')}{_from(first.before['A'])}, "
            f"B in {quantity(second.load_s, 's')}, A again in {quantity(third.load_s, 's')}."
        )
        if math.isnan(self.left):
            return f"This system does not tell what lies in the page cache. {times}"
        left = f"{quantity(self.left, '')} of A lay in memory after B."
        return f"{'B pushed A out' if self.is_pushed_out else 'There is room for both'}: {left} {times}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a share that the system does not tell is None."""
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
    on_opening: Callable[[Opening], object] = lambda _opening: None,
    on_progress: Callable[[float], object] = lambda _share: None,
) -> LoadOrder:
    """Load A, B and A again, each in a pool of its own that ends before the next begins, and ask each for a token.

    `spec` is one sequence unless told. `on_step` gets each step as it is measured; `on_opening` what ends the step that
    is about to begin, by stop(); `on_progress` 0 to 1, by the bytes of the files loaded. Raises ConfigError for the
    same model twice, ModelError, MemoryRefused, BenchTimeout, and PoolClosed after stop().
    """
    files = {"A": read_model(a), "B": read_model(b)}
    if files["A"].path.samefile(files["B"].path):
        raise ConfigError(f"{files['A'].path}: is both A and B; choose two different models")
    for file in files.values():
        for path in file.files:
            page_cache.drop(path)
    # what is measured keeps its number of threads
    chosen = spec or PoolSpec(parallel=1)
    chosen = replace(chosen, threads=chosen.threads or threads_for(chosen.instances))
    total = sum(files[name].size for name in ORDER)
    steps: list[LoadStep] = []
    for name in ORDER:
        loaded = sum(files[step.name].size for step in steps)
        tell = partial(_tell, on_progress, loaded / total, files[name].size / total)
        opening = Opening(patience_s(files[name].size))
        on_opening(opening)
        steps.append(_load(name, files, chosen, opening, tell))
        on_step(steps[-1])
    return LoadOrder(files["A"].path, files["B"].path, steps)


def _tell(on_progress: Callable[[float], object], before: float, part: float, share: float) -> None:
    on_progress(before + part * share)


def _load(
    name: str, files: dict[str, ModelFile], spec: PoolSpec, opening: Opening, on_progress: Callable[[float], object]
) -> LoadStep:
    before = _shares(files)
    asked = Workload(num_prompt=_PROMPT, num_generated=1)
    with opening:
        pool = Pool(files[name].path, **asdict(spec), on_progress=on_progress, on_opening=opening.begins)
        with pool:
            opening.begins(pool.close)
            first_token_s = Load(pool, asked).first_token_s(Deadline(COLD_TIMEOUT_S))
            load_s = pool.startup.load_s
    return LoadStep(name, load_s, first_token_s, before, _shares(files))


def _from(resident: float) -> str:
    """Where a model came from of which this share lay in memory; empty where the system does not tell."""
    if math.isnan(resident):
        return ""
    return " from the disk" if resident < PUSHED_OUT else f", {quantity(resident, '')} of it in memory already"


def _shares(files: dict[str, ModelFile]) -> dict[str, float]:
    return {name: page_cache.resident_share_of(file.files) for name, file in files.items()}
