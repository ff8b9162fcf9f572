"""What the workbench prepares in the background: a button that starts it, its progress, and what came of it."""

from collections.abc import Callable

import streamlit as st

from engine.workbench import Workbench
from engine.workbench.background import Stopped
from pages.parts import job_tray
from pages.parts.benchmark import sweep
from pages.parts.notice import notice
from pages.parts.plain import plain

REFRESH_S = 1.0


def button(bench: Workbench, label: str, icon: str, key: str, action: Callable[[], object], told: str = "") -> None:
    """Start something, unless something else is being done or measured."""
    is_idle = not bench.files.doing and bench.bench.background.task is None
    is_free = is_idle and not bench.turns.is_measuring()
    st.button(
        label, icon=f":material/{icon}:", key=key, disabled=not is_free, on_click=sweep.act, args=(action,),
        help=told or None,
    )  # fmt: skip


def show(bench: Workbench) -> None:
    """How far it is, or why it failed."""
    error = bench.bench.background.error
    if bench.bench.background.task is not None:
        _progress(bench)
    elif isinstance(error, Stopped):
        st.caption(plain(str(error)))
    elif error is not None:
        notice(error)


@st.fragment(run_every=REFRESH_S)
def _progress(bench: Workbench) -> None:
    task, running = bench.bench.background.task, bench.bench.running
    if task is None:
        if running is not None:
            sweep.show_run(running.run_id)
        st.rerun()
    job_tray.bar(bench.bench.background, "bench_background_stop")
