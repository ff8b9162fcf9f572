"""Configurations of a plan: the product of its axes, each resolved to what will run, or with the reason it cannot."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from engine.bench.planning import engines
from engine.bench.planning.axes import AXES
from engine.bench.planning.feasibility import Feasibility, num_needed
from engine.bench.planning.layout import Layout, parse_layout
from engine.bench.planning.plan import Cell, Objective, Plan, PlannedCell, Workload
from engine.bench.planning.product import Axes, Settings, checked_axes, part, product_of
from engine.errors import ConfigError
from engine.files import named_path
from engine.machine.cores import threads_for
from engine.specs import PoolSpec
from engine.validation import Spec

LENGTHS = ("num_prompt", "num_generated", "depth")
ONE_AT_A_TIME = (*engines.SINGLE, engines.LLAMA_CPP_SERVER)
"""Engines whose further users wait, whatever number of sequences the others have."""
ARRIVALS = {"users": "users", "rate_per_s": "poisson"}
"""Arrival mode that an axis implies."""

S = TypeVar("S", bound=Spec)


def cells_of(plan: Plan, feasibility: Feasibility | None = None) -> list[Cell]:
    """Return every configuration of `plan` once, numbered in the order of its axes.

    Where the plan has no n_ctx, the context fits the longest request of all configurations, so that those which differ
    only in their requests share workers; or of this configuration alone where that takes more memory than there is.
    feasibility: one to reuse where the same configurations are checked again. Raises ConfigError for unknown axes,
    values out of range, an axis that is fixed as well, and more than 10,000 configurations.
    """
    axes = checked_axes(plan)
    return product_of(axes, _Maker(plan, axes, feasibility or Feasibility()).cell)


def anchor_of(plan: Plan, cells: Sequence[PlannedCell]) -> int:
    """Return the number of the control: the plan's, or the first configuration that can run where that one cannot.

    Raises ConfigError with the first reason when none can run.
    """
    able = [cell.number for cell in cells if not cell.refusal]
    if not able:
        raise ConfigError(f"none of the {len(cells):,} configurations can run; the first one: {cells[0].refusal}")
    return plan.anchor if plan.anchor in able else able[0]


class _Maker:
    """Builder of single configurations, as yet without number and label."""

    def __init__(self, plan: Plan, axes: Axes, feasibility: Feasibility) -> None:
        self._model = plan.model
        self._objective = Objective.from_dict(plan.objective)
        self._pool = dict(plan.pool)
        if "arm" in axes and not axes.keys() & {"parallel", *ARRIVALS}:
            # The other ways of calling answer one request at a time.
            self._pool.setdefault("parallel", 1)
        self._workload = _with_arrival(plan.workload, axes)
        self._has_n_ctx = "n_ctx" in axes or "n_ctx" in plan.pool
        longest = {name: max(axes[name]) for name in axes if name in LENGTHS}
        self._num_needed = num_needed(_made(Workload, self._workload | longest, LENGTHS)[0])
        self._feasibility = feasibility

    def cell(self, chosen: Settings) -> Cell:
        """Return the configuration of one value for each axis."""
        pool_values, workload_values = self._pool | part(chosen, "pool"), self._workload | part(chosen, "workload")
        if "layout" in chosen:
            pool_values |= parse_layout(chosen["layout"]).resolved()._asdict()
        workload, senseless = _made(Workload, workload_values, LENGTHS)
        engine = chosen.get("arm", engines.POOL)
        if workload.arrival != "together" and "parallel" not in chosen and engine in ONE_AT_A_TIME:
            pool_values["parallel"] = 1
        pool, contradiction = _made(PoolSpec, pool_values, ("n_ubatch",))
        model = requested = model_path(chosen.get("model", self._model))
        if engine == engines.TRANSFORMERS:
            model = self._feasibility.folder_of(model)
            if not model:  # then it runs the file itself, with its weights as floats
                model, pool = requested, replace(pool, dtype=pool.dtype or "float32")
        if not self._has_n_ctx:
            pool = self._with_context(model, pool, workload)
        cell = Cell(
            number=0,
            label="",
            model=model,
            build=chosen.get("build") or "",
            arm=engine,
            pool=_resolved(pool),
            workload=workload,
            objective=self._objective,
            settings={},
        )
        # A refused configuration keeps the requested values, which the specs cannot hold.
        refused = (LENGTHS if senseless else ()) + (("n_ubatch",) if contradiction else ())
        asked = {name: value for name, value in (pool_values | workload_values).items() if name in refused}
        return replace(
            cell,
            settings=_settings(cell, requested) | asked,
            refusal=senseless or contradiction or self._feasibility.refusal(cell),
            notes=self._feasibility.notes(cell),
        )

    def _with_context(self, model: str, pool: PoolSpec, workload: Workload) -> PoolSpec:
        """Return `pool` with a context for the plan's longest request, else for that of this configuration."""
        spacious = replace(pool, n_ctx=max(pool.n_ctx, self._num_needed))
        if self._feasibility.fits(model, _resolved(spacious)):
            return spacious
        return replace(pool, n_ctx=max(pool.n_ctx, num_needed(workload)))


def _made(kind: type[S], values: Settings, doubtful: tuple[str, ...]) -> tuple[S, str]:
    """Return the spec and no reason; or the spec without its `doubtful` values, and the reason why they contradict."""
    try:
        return kind.from_dict(values), ""
    except ConfigError as error:
        return kind.from_dict({name: value for name, value in values.items() if name not in doubtful}), str(error)


def _with_arrival(workload: Mapping[str, Any], axes: Axes) -> Settings:
    """Return the plan's workload with the arrival mode that its axes imply; refuse axes without meaning for it."""
    implied = [arrival for name, arrival in ARRIVALS.items() if name in axes]
    if len(implied) > 1 or (implied and workload.get("arrival", implied[0]) != implied[0]):
        raise ConfigError("users and rate_per_s both set how requests arrive: use one of them, without another arrival")
    if workload.get("asked") == "prompts" and (senseless := [name for name in ("num_prompt", "depth") if name in axes]):
        raise ConfigError(f"the axis {senseless[0]} does not apply to texts: remove it, or use random tokens")
    return dict(workload) | ({"arrival": implied[0]} if implied else {})


def _resolved(pool: PoolSpec) -> PoolSpec:
    """Return the pool with every number as resolved by llama.cpp and this machine, so that equal ones compare equal."""
    threads = pool.threads or threads_for(pool.instances)
    return replace(
        pool,
        threads=threads,
        threads_batch=pool.threads_batch or threads,
        share_weights=bool(pool.share_weights),
        n_ctx=pool.padded_n_ctx,
        n_batch=pool.resolved_n_batch,
        n_ubatch=pool.resolved_n_ubatch,
    )


def _settings(cell: Cell, model: str) -> Settings:
    """Return the values of a configuration by axis, in the order of the table; only those that its requests use.

    model: the requested one, also where transformers runs the folder beside it.
    Of an external engine only those that are sent to it: what it runs with is decided where it was started.
    """
    values: Settings = {
        "layout": Layout(cell.pool.instances, cell.pool.threads or 1).text,
        "model": model,
        "build": cell.build or None,
        "arm": cell.arm,
    }
    unused = {name for name, arrival in ARRIVALS.items() if cell.workload.arrival != arrival}
    if cell.workload.asked == "prompts":
        unused |= {"num_prompt", "depth"}
    for axis in AXES:
        if axis.where != "cell" and axis.name not in unused:
            values[axis.name] = getattr(cell.pool if axis.where == "pool" else cell.workload, axis.name)
    own = {axis.name: values[axis.name] for axis in AXES if axis.name in values}
    if not engines.is_external(cell.arm):
        return own
    return {name: value for name, value in own.items() if name in ("arm", "parallel") or hasattr(Workload, name)}


def model_path(given: str) -> str:
    """Return a model's absolute path; the text itself where it is none here, as in a run of another machine."""
    with suppress(ConfigError):
        return str(named_path(given))
    return given
