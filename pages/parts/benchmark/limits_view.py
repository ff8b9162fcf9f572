"""Hardware limits of this machine, and how close the recommended configuration comes to them."""

import math

import streamlit as st

from engine.bench.analysis.roofline import Roofline, shares
from engine.bench.analysis.summary import CellSummary
from engine.bench.planning.candidates import planned_cells
from engine.bench.planning.plan import Cell, Plan, Workload
from engine.errors import EngineError
from engine.machine.limits import Limits
from engine.models import read_model
from engine.runs import RunRecord
from engine.units import counted, digits
from engine.workbench import Workbench
from pages.parts.benchmark import run_state, task_button
from pages.parts.notice import notice
from pages.parts.plain import plain
from pages.parts.units import size

SHAPE, SHAPE_LABEL = "llama-1.1b-32k", "Measure a synthetic 1.1 B model (668 MB, no download)"


def show(bench: Workbench, run: RunRecord, cell: CellSummary | None) -> None:
    """Draw the limits and the share that a configuration reaches, or a button that measures unknown limits."""
    st.subheader("Hardware limits", anchor=False)
    try:
        limits = bench.bench.limits()
        share = _share(run, cell, limits) if limits is not None and cell is not None and run.plan else None
    except EngineError as error:
        notice(error)
        return
    if limits is None:
        st.caption("The memory bandwidth and compute speed of this machine are not measured yet.")
        task_button.button(
            bench, "Measure this machine · a few seconds", "straighten", "limits_measure", bench.bench.measure_limits
        )
    else:
        if share is not None:
            _captions(bench, run, share)
        st.caption(plain(machine_limits(limits)))
    task_button.show(bench)


def _captions(bench: Workbench, run: RunRecord, share: Roofline) -> None:
    """Draw what limits the configuration, and the button for the measurement that would show more."""
    st.markdown(plain(share.says))
    if share.fits_in_cache:
        task_button.button(
            bench, SHAPE_LABEL, "straighten", "limits_shape", lambda: _start_shape(bench, run),
            "Writes a model of that size with random weights and runs the same workload on it",
        )  # fmt: skip
    elif math.isnan(share.prefill):
        plan = Plan.from_dict(run.plan)
        num_prompt = Workload.from_dict(plan.workload).num_prompt
        task_button.button(
            bench, "Measure the prefill limit · about a minute", "straighten", "limits_prefill",
            lambda: bench.bench.measure_limits(plan.model, num_prompt),
            "Times single layers of this model's shape with random weights; no configuration can be faster",
        )  # fmt: skip


def _start_shape(bench: Workbench, run: RunRecord) -> None:
    plan = Plan.from_dict(run.plan)
    run_state.launch(bench, plan, lambda confirmed: bench.bench.start_shape(SHAPE, run.id, confirmed=confirmed))


def _share(run: RunRecord, measured: CellSummary, limits: Limits) -> Roofline | None:
    """Return the shares of the limits that a configuration reaches; None if the run's plan has no such `Cell`."""
    plan = Plan.from_dict(run.plan)
    planned = planned_cells(plan)
    cell = next((one for one in planned if one.number == measured.number), None)
    if not isinstance(cell, Cell):
        return None
    speeds = {
        name: measured.metrics[name].value if name in measured.metrics else math.nan
        for name in ("tokens_per_s", "prefill_per_s")
    }
    return shares(cell, read_model(cell.model), limits, **speeds)


def machine_limits(limits: Limits) -> str:
    """Return the limits of a machine in one line."""
    reads = [f"{digits(rate / 1e9)} GB/s with {counted(num, 'thread')}" for num, rate in limits.bandwidth]
    cache = f" · last-level cache {size(limits.cache_bytes)}" if limits.cache_bytes else ""
    return f"Memory bandwidth {', '.join(reads)} · compute {digits(limits.flops / 1e9)} GFLOP/s{cache}"
