"""Background preparation: a button that starts a task, its progress, and its failure."""

from collections.abc import Callable

import streamlit as st

from engine.workbench import Workbench
from engine.workbench.bench_manager import CONNECTING, WAITING
from pages.parts import task_progress
from pages.parts.benchmark import run_state
from pages.parts.models import file_task
from pages.parts.notice import notice
from pages.parts.plain import plain

REFRESH_S = 1.0
OF_A_RUN = (WAITING, CONNECTING)
"""Names of the tasks that prepare a run: they are drawn only beside the button that started them."""


def button(
    bench: Workbench,
    label: str,
    icon: str,
    key: str,
    action: Callable[[], object],
    help: str = "",
    *,
    is_primary: bool = False,
) -> None:
    """Draw a button that starts a task; disabled while another task or a benchmark runs."""
    is_free = file_task.is_free(bench) and bench.bench.background.running is None
    st.button(
        label, icon=f":material/{icon}:", key=key, disabled=not is_free, on_click=run_state.act, args=(action,),
        help=help or None, type="primary" if is_primary else "secondary",
    )  # fmt: skip


def show(bench: Workbench, *names: str) -> None:
    """Draw the progress of the last task, or why it failed.

    names: of the tasks that are drawn; without any, all but those of OF_A_RUN.
    """
    task = bench.bench.background.last
    if task is None or task.state == "done" or (task.name not in names if names else task.name in OF_A_RUN):
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
            run_state.show_run(running.run_id)
        st.rerun()
    task_progress.bar(task, "bench_background_stop")
