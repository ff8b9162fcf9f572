"""The job tray under the model bar: the benchmark that runs, how far it is, and Stop; nothing where none runs."""

import streamlit as st
from streamlit.navigation.page import Page

from engine.bench.running.progress import Progress
from engine.units import duration
from engine.workbench import Workbench, current

REFRESH_S = 5.0
JOBS = {"speed": "Sweep", "settings": "Tuning", "python": "Cost of Python", "users": "Users"}


def show(page: Page) -> None:
    """Draw the tray; `page` is where its run can be watched."""
    if current().bench.running is not None:
        _running(page)


@st.fragment(run_every=REFRESH_S)
def _running(page: Page) -> None:
    bench = current()
    running = bench.bench.running
    st.caption("Benchmark")
    if running is None:
        st.page_link(page, label="It has ended: open it", icon=":material/done:", width="stretch")
        return
    progress = running.progress
    job = JOBS[running.plan.question]
    st.page_link(
        page, label=f"{job} {progress.done}/{progress.total}", icon=":material/speed:", width="stretch",
        query_params={"run": running.run_id},
    )  # fmt: skip
    st.progress(share(progress))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(time_left(progress), width="stretch")
        st.button("Stop", key="tray_stop", type="tertiary", on_click=_stop, args=(bench,))


def _stop(bench: Workbench) -> None:
    bench.bench.stop()


def share(progress: Progress) -> float:
    """How much of the run is done, 0 to 1."""
    return min(progress.done / progress.total, 1.0) if progress.total else 0.0


def time_left(progress: Progress) -> str:
    """How long it will still take, in words."""
    return "time left: not known yet" if progress.left_s is None else f"{duration(progress.left_s)} left"
