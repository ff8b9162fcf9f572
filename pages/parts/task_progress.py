"""Progress of a background task on a page: a bar with the current step and the time left, and Stop."""

from typing import Any

import streamlit as st

from engine.tasks import Progress, Task
from pages.parts.plain import plain

REFRESH_S = 0.5
UNKNOWN = "estimating time left…"


def left(task: Task[Any]) -> str:
    """Return the remaining time of a task, or what it waits for, in words."""
    if task.is_stopped:
        return "stopping"
    return f"waiting for: {task.waits_for}" if task.waits_for else task.progress.left or UNKNOWN


def line(task: Task[Any], about: str = "") -> str:
    """Return the subject, the current step and the remaining time of a task, in one line."""
    return " · ".join(part for part in (about, task.doing, left(task)) if part)


def part(name: str, progress: Progress) -> None:
    """Draw the progress of one of the parts that a task does side by side."""
    st.progress(progress.share, plain(" · ".join(each for each in (name, progress.doing, progress.left) if each)))


def bar(task: Task[Any] | None, key: str) -> None:
    """Draw the name of a task, the remaining time, and Stop; nothing without a task."""
    if task is not None:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.progress(task.share, plain(f"{task.name} · {left(task)}"))
            st.button("Stop", icon=":material/stop:", type="tertiary", key=key, on_click=task.stop)


@st.fragment(run_every=REFRESH_S)
def follow(task: Task[Any], about: str = "") -> None:
    """Draw the line of a running task and keep it up to date; rerun the page at its end."""
    if not task.is_running:
        st.rerun()
    st.progress(task.share, plain(line(task, about)))


def with_stop(task: Task[Any], key: str) -> None:
    """Draw the name, the line of a running task and Stop beside them, as `follow` does."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        follow(task, task.name)
        st.button("Stop", icon=":material/stop:", type="tertiary", key=key, on_click=task.stop)


def has_ended(task: Task[Any], key: str, within_s: float) -> bool:
    """Return whether a task ends within some seconds; if not, draw progress and Stop, and rerun the page at its end."""
    if task.wait(within_s):
        return True
    follow(task)
    st.button("Stop", key=key, icon=":material/stop:", on_click=task.stop)
    return False
