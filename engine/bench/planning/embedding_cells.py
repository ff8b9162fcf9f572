"""Configurations of an embedding plan: the product of its axes, each with its resolved workers."""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from engine.bench.planning import engines
from engine.bench.planning.axes import EMBEDDING_AXES
from engine.bench.planning.cells import model_path
from engine.bench.planning.feasibility import Feasibility, crowded
from engine.bench.planning.layout import Layout, parse_layout
from engine.bench.planning.plan import EmbeddingCell, Plan, TextWorkload
from engine.bench.planning.product import Settings, checked_axes, part, product_of
from engine.embedding.specs import EmbedSpec
from engine.units import quantity

EXACT = "torch"
"""The float32 backend, the reference for the vectors of all others; default of a plan that names none."""
REQUESTS_AT_ONCE = 4
"""To an external engine, which has layouts, models and batches of its own."""
ELSEWHERE = "not started here: its model, threads and memory are its own"


def embedding_cells(plan: Plan, feasibility: Feasibility | None = None) -> list[EmbeddingCell]:
    """Return every configuration of a plan of the question "embedding" once, in the order of its axes.

    Raises ConfigError as `engine.bench.planning.cells.cells_of` does.
    """
    return product_of(checked_axes(plan), partial(_cell, plan, feasibility or Feasibility()))


def _cell(plan: Plan, feasibility: Feasibility, chosen: Settings) -> EmbeddingCell:
    """Return the configuration of one value for each axis, as yet without number and label."""
    workers = {"backend": EXACT, **plan.pool, **part(chosen, "embedding")}
    workload = TextWorkload.from_dict(dict(plan.workload) | part(chosen, "texts"))
    model = _whole_path(chosen.get("model", plan.model))
    if engines.is_external(workers["backend"]):
        spec = EmbedSpec(backend=workers["backend"], workers=REQUESTS_AT_ONCE)
        return EmbeddingCell(
            number=0,
            label="",
            model=model,
            spec=spec,
            workload=workload,
            settings=_settings(spec, workload),
            notes=(ELSEWHERE,),
            refusal=feasibility.missing(spec.backend),
        )
    if "layout" in chosen:
        layout = parse_layout(chosen["layout"]).resolved()
        workers |= {"workers": layout.instances, "threads": layout.threads}
    spec = _resolved(EmbedSpec.from_dict({**workers, "model": model}))
    return EmbeddingCell(
        number=0,
        label="",
        model=spec.model,
        spec=spec,
        workload=workload,
        settings=_settings(spec, workload),
        notes=crowded(spec.workers * spec.resolved_threads),
        refusal=next(_refusals(spec, feasibility), ""),
    )


def _whole_path(given: str) -> str:
    """Return a folder or file as absolute path, since a run may be continued from another folder; a name unchanged."""
    path = model_path(given)
    return path if os.path.exists(path) else given


def _resolved(spec: EmbedSpec) -> EmbedSpec:
    """Return the spec with every number as resolved for this machine, so that equal ones compare equal."""
    return replace(spec, threads=spec.resolved_threads, tokens_per_batch=spec.resolved_tokens_per_batch)


def _settings(spec: EmbedSpec, workload: TextWorkload) -> Settings:
    """Return the values of a configuration by axis, in the order of the table; only those that its texts use, and of an
    external engine those that the plan decides."""
    values: Settings = {}
    if not spec.engine:
        values = {"layout": Layout(spec.workers, spec.resolved_threads).text, "model": spec.model}
    for axis in EMBEDDING_AXES:
        if axis.name == "tokens_per_batch" and spec.engine:
            continue
        if axis.where != "cell" and not (axis.name == "num_words" and workload.texts):
            values[axis.name] = getattr(spec if axis.where == "embedding" else workload, axis.name)
    return {axis.name: values[axis.name] for axis in EMBEDDING_AXES if axis.name in values}


def _refusals(spec: EmbedSpec, feasibility: Feasibility) -> Iterator[str]:
    """Yield the reasons why a configuration cannot run: its model, its backend, its memory."""
    model = feasibility.embedding_model(spec.model)
    if isinstance(model, str):
        yield model
        return
    reason = feasibility.backends(model).get(spec.backend, "not a backend; name the one to measure")
    if reason:
        yield f"{spec.backend}: {reason}"
    need = feasibility.need_of_embedding(spec)
    if need is not None and need.total > need.available:
        yield (
            f"needs more memory than is available: about {quantity(need.total, 'B')} for the model and "
            f"{spec.workers:,} processes, and {quantity(need.available, 'B')} are free"
        )
