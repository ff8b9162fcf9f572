"""Live view of a run: progress, the current configuration, samples so far, and how quiet the machine is."""

import math
from collections.abc import Mapping
from pathlib import Path

import streamlit as st

from engine.bench.analysis.summary import summarise
from engine.machine.cores import num_cores
from engine.machine.noise import OTHER_SHARE, STEAL_SHARE
from engine.runs import RunRecord
from engine.units import NOT_MEASURED, cores, percent, quantity
from engine.workbench import Workbench
from pages.parts import task_progress
from pages.parts.benchmark import run_state
from pages.parts.benchmark.live_chart import live_chart
from pages.parts.labels import calm_sign
from pages.parts.notice import notice
from pages.parts.plain import plain

# No faster, because drawing takes processor time from the measurement.
REFRESH_S = 2.0
REDRAW_S = 3.0


def in_seconds(value: float) -> str:
    """Return seconds with their unit."""
    return quantity(value, "s")


LIGHTS = (
    ("taken by the host", "steal_share", percent, STEAL_SHARE, "CPU time that the hypervisor gave to other guests"),
    ("waiting for CPU", "pressure_share", percent, math.inf, "Share of time in which a task waited for a CPU"),
    ("throttled", "throttled_s", in_seconds, 0.0, "Time for which the CPU quota stopped this container"),
    ("other programs", "other_cores", cores, OTHER_SHARE * num_cores(), "Cores used by other programs"),
)


def show(bench: Workbench, run: RunRecord) -> None:
    """Draw a running benchmark and follow it; once it has ended the whole page is redrawn."""
    st.caption(plain(" · ".join(part for part in (run.name, Path(run.plan.get("model", "")).name) if part)))
    with st.container(horizontal=True, vertical_alignment="top", gap="medium"):
        with st.container():
            _follow(bench, run.id, {cell.number: cell.label for cell in run.cells})
        st.button(
            "Stop", type="primary", icon=":material/stop:", key="watch_stop",
            on_click=run_state.act, args=(bench.bench.stop,),
            help="Stops immediately; samples so far are saved, and the run can be continued",
        )  # fmt: skip
    _samples(bench, run.id)
    st.caption("The model in the model bar waits during the benchmark; a trial runs after the current sample.")


@st.fragment(run_every=REFRESH_S)
def _follow(bench: Workbench, run_id: str, labels: Mapping[int, str]) -> None:
    running = bench.bench.running
    if running is None or running.run_id != run_id:
        st.rerun()
    task, progress = bench.bench.task, running.progress
    if task is not None:
        st.progress(task.share, plain(task_progress.line(task)))
    now = [labels.get(progress.cell, "") if progress.cell is not None else "", progress.message]
    st.caption(plain(" · ".join(part for part in now if part)) or "Starting")
    if running.failure is not None:
        notice(
            f"{running.failure}\nSamples stay in memory and are saved when the run ends and the history works again."
        )
    _lights(running.noise)


@st.fragment(run_every=REDRAW_S)
def _samples(bench: Workbench, run_id: str) -> None:
    """Draw the samples so far, all configurations from the start."""
    running, run = bench.bench.running, bench.bench.run(run_id)
    if running is not None and run is not None:
        live_chart(run, summarise(run), running.progress.cell, key="watch_chart")


def _lights(noise: Mapping[str, float]) -> None:
    """Show other activity of the machine during the last sample, marked calm, disturbing or informative only.

    Before the first sample there is a dash in place of each figure.
    """
    unknown = "not measured here" if noise else NOT_MEASURED
    with st.container(horizontal=True, gap="medium"):
        for label, name, show_value, limit, help in LIGHTS:
            value = noise.get(name, math.nan)
            is_calm = None if math.isnan(value) or math.isinf(limit) else value <= limit
            figure = unknown if math.isnan(value) else show_value(value)
            st.caption(f"{calm_sign(is_calm)} {label} {figure}", help=help, width="content")
