"""Measurement of this machine's card from a page: its button, its progress with Stop, and why it could not be made."""

from collections.abc import Callable

import streamlit as st

from engine.tasks import Task
from engine.workbench import Workbench
from engine.workbench.machine_card import MachineCard
from pages.parts import task_progress
from pages.parts.models import file_task
from pages.parts.notice import attempt, notice, of_this
from pages.parts.plain import plain

FIRST = "Measure this machine · 60 s"
ERROR = "card_error"
HELP = "What else uses the processor meanwhile makes the figures worse; the card says so"


def control(
    bench: Workbench, key: str, label: str = FIRST, *, is_primary: bool, start: Callable[[], object] | None = None
) -> bool:
    """Draw the button that measures this machine with the loaded model, or while it is measured, progress and Stop.

    Return whether it is being measured. Call inside a row. start: what the button does, `bench.cards.start` by default.
    """
    task = bench.cards.running
    if task is not None:
        task_progress.follow(task)
        st.button("Stop", icon=":material/stop:", type="tertiary", key=f"{key}_stop", on_click=bench.cards.stop)
        return True
    is_ready = bench.model.engine is not None and file_task.is_free(bench)
    st.button(
        label, icon=":material/speed:", type="primary" if is_primary else "secondary", key=f"{key}_measure",
        disabled=not is_ready, on_click=attempt, args=(ERROR, start or bench.cards.start), help=HELP,
    )  # fmt: skip
    return False


def failure(bench: Workbench) -> None:
    """Show why a measurement could not start, or why the last one has no card."""
    task: Task[MachineCard] | None = bench.cards.last
    error = of_this(ERROR, bench.model.path)
    if error is not None:
        notice(error)
    elif task is not None and not task.is_running and task.error is not None:
        if task.state == "stopped":
            st.caption(plain(f"{task.error} Its samples are kept as a run."))
        else:
            notice(task.error)
