"""Cells for the measurement tests."""

from pathlib import Path
from typing import Any

from engine.bench.planning.plan import Cell, Objective, Workload
from engine.specs import PoolSpec

SMALL = {"num_prompt": 16, "num_generated": 8}


def make_cell(model: Path, number: int = 0, pool: dict[str, Any] | None = None, **workload: Any) -> Cell:
    """Return a cell, by default with one thread and two sequences."""
    return Cell(
        number=number,
        label=str(number),
        model=str(model),
        build="",
        arm="pool",
        pool=PoolSpec(**{"threads": 1, "parallel": 2, "n_ctx": 256} | (pool or {})),
        workload=Workload(**SMALL | workload),
        settings={},
        objective=Objective(),
    )
