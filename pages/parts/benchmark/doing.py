"""What the workbench prepares in the background: a button that starts it, its progress, and what came of it."""

from collections.abc import Callable

import streamlit as st

from engine.workbench import Workbench
from engine.workbench.bench_slot import WAITING
from pages.parts import job_tray
from pages.parts.benchmark import sweep
from pages.parts.models import file_task
from pages.parts.notice import notice
from pages.parts.plain import plain

REFRESH_S = 1.0


def button(
    bench: Workbench,
    label: str,
    icon: str,
    key: str,
    action: Callable[[], object],
    told: str = "",
    *,
    is_primary: bool = False,
) -> None:
    """Start something, unless something else is being done or measured."""
    is_free = file_task.is_free(bench) and bench.bench.background.running is None
    st.button(
        label, icon=f":material/{icon}:", key=key, disabled=not is_free, on_click=sweep.act, args=(action,),
        help=told or None, type="primary" if is_primary else "secondary",
    )  # fmt: skip


def show(bench: Workbench, *, is_waiting: bool = False) -> None:
    """How far it is, or why it failed. is_waiting: of a run that waits for a quiet machine; else of anything else."""
    task = bench.bench.background.last
    if task is None or task.state == "done" or (task.name == WAITING) is not is_waiting:
        return
    if task.is_running:
        _progress(bench)
    elif task.state == "stopped":
        st.caption(plain(str(task.error)))
    elif task.error is not None:
        notice(task.error)


@st.fragment(run_every=REFRESH_S)
def _progress(bench: Workbench) -> None:
    task, running = bench.bench.background.running, bench.bench.running
    if task is None:
        if running is not None:
            sweep.show_run(running.run_id)
        st.rerun()
    job_tray.bar(task, "bench_background_stop")
