"""Candidates of the question "settings": the plan for a goal, and its configurations including llama.cpp's default."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from engine.bench.planning.cells import cells_of
from engine.bench.planning.embedding_cells import embedding_cells
from engine.bench.planning.feasibility import Feasibility
from engine.bench.planning.plan import Cell, Goal, Plan, PlannedCell
from engine.machine.cores import num_cores

DEFAULT = 0
"""Number of the configuration with llama.cpp's defaults."""

DEFAULT_LABEL = "llama.cpp's default"

METRIC: dict[Goal, str] = {
    "stream": "decode_per_s",
    "throughput": "tokens_per_s",
    "first-token": "ttft_s",
    "memory": "tokens_per_s",
}
"""Deciding metric of each goal; "memory" seeks the least memory at ENOUGH of the best."""

MOST_FINALISTS = 4

ENOUGH = 0.95

_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_WORKLOADS: dict[Goal, dict[str, int]] = {
    "stream": {"num_prompt": 8, "num_generated": 64},
    "throughput": {"num_prompt": 8, "num_generated": 32},
    "first-token": {"num_prompt": 256, "num_generated": 2},
    "memory": {"num_prompt": 8, "num_generated": 32},
}


def settings_plan(
    model: str | Path,
    goal: Goal = "throughput",
    budget_s: float = 300.0,
    *,
    n_ctx: int = 512,
    cores: int | None = None,
    may_change_answers: bool = False,
    seed: int = 0,
) -> Plan:
    """Return the plan that searches for the best settings of `model`, whose sequences hold n_ctx tokens each.

    cores: number to use, by default all that this process may use. The axes are those that matter for the goal; one
    that changes the answers is included only where allowed.
    """
    cores = cores or num_cores()
    axes: dict[str, tuple[Any, ...]] = {"layout": _layouts(goal, cores)}
    axes["parallel"] = _SEQUENCES if goal in ("throughput", "memory") else (1,)
    axes["share_weights"] = (False, True)
    if goal == "first-token":
        axes["n_ubatch"] = (None, 32, 64, 128)
    if may_change_answers:
        axes["flash_attn"] = (None, False)
        if goal == "memory":
            axes["type_k"] = axes["type_v"] = ("f16", "q8_0")
    return Plan(
        name=f"Best settings: {goal}",
        question="settings",
        model=str(model),
        axes=axes,
        pool={"n_ctx": n_ctx},
        workload=_WORKLOADS[goal],
        goal=goal,
        budget_s=budget_s,
        may_change_answers=may_change_answers,
        seed=seed,
    )


def planned_cells(plan: Plan, feasibility: Feasibility | None = None) -> Sequence[PlannedCell]:
    """Return the configurations of any plan, whatever its question. Raises ConfigError as cells_of does."""
    if plan.is_embedding:
        return embedding_cells(plan, feasibility)
    return candidates(plan) if plan.question == "settings" else cells_of(plan, feasibility)


def candidates(plan: Plan) -> list[Cell]:
    """Return the configurations of a "settings" plan: llama.cpp's default first, then the product of the axes.

    The default is one process with a thread for each physical core, one sequence and repacked weights; everything else
    that the plan does not vary is as in the plan. Raises ConfigError as cells_of does.
    """
    alone = {"layout": f"1x{default_threads()}", "parallel": 1, "share_weights": False}
    standard: dict[str, Any] = {
        "n_batch": None,
        "n_ubatch": None,
        "threads_batch": None,
        "pin": False,
        "flash_attn": None,
        "type_k": "f16",
        "type_v": "f16",
        "load": "mmap",
    }
    varied = {name: standard.get(name, values[0]) for name, values in plan.axes.items()}
    pool = {name: value for name, value in plan.pool.items() if name not in (*alone, "instances", "threads")}
    axes = {name: (value,) for name, value in (varied | alone).items()}
    (default,) = cells_of(replace(plan, axes=axes, pool=pool))
    others = [cell for cell in cells_of(plan) if not _is_same(cell, default)]
    cells = [replace(default, label=DEFAULT_LABEL), *others]
    return [replace(cell, number=number) for number, cell in enumerate(cells)]


def default_threads() -> int:
    """Return the default number of threads of llama.cpp's programs: one for each physical core.

    Cores that this process may not use count too (common.cpp, common_cpu_get_num_math).
    """
    return psutil.cpu_count(logical=False) or psutil.cpu_count() or 1


def _is_same(cell: Cell, other: Cell) -> bool:
    return cell.worker_key == other.worker_key and cell.workload == other.workload


def _layouts(goal: Goal, cores: int) -> tuple[str, ...]:
    """Return one process with few to all cores where one stream counts; else ways to divide all cores.

    From four cores on, the latter include ways to divide half of them: two threads on one physical core may be slower
    than one.
    """
    if goal in ("stream", "first-token"):
        threads = {max(1, round(cores * part)) for part in (1 / 4, 1 / 2, 3 / 4, 1)}
        return tuple(f"1x{number}" for number in sorted(threads))
    used = (cores, cores // 2) if cores >= 4 else (cores,)
    powers = [1 << power for power in range(cores.bit_length())]
    return tuple(f"{count}x{total // count}" for count in powers for total in used if total >= count)
