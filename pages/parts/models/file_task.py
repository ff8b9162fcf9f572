"""Task that downloads or makes a model: progress, Stop, and the result."""

from collections.abc import Callable

import streamlit as st

from engine.models.details import readable
from engine.workbench import Workbench
from engine.workbench.model_files import FileTask, Kind
from pages.parts import task_progress
from pages.parts.models import place
from pages.parts.notice import attempt, notice
from pages.parts.plain import plain

ERROR = "models_file_error"
DOING: dict[Kind, str] = {"get": "Fetching", "quantise": "Quantising", "synthesise": "Writing"}


def show(bench: Workbench) -> None:
    """Draw the task with its buttons, and the error of the last button; nothing without a task."""
    error = st.session_state.get(ERROR)
    if error is not None:
        notice(error)
    task = bench.files.task
    if task is None:
        return
    if task.is_running:
        task_progress.follow(task, f"{DOING[task.kind]} {task.name}")
        _button("Stop", "stop", bench.files.stop)
    elif task.state == "done":
        _done(bench, task)
    else:
        _failed(bench, task)


def act(action: Callable[[], object]) -> None:
    """Run the action of a button; a failure is shown on the page."""
    attempt(ERROR, action)


def is_free(bench: Workbench) -> bool:
    """Return True if a model may be downloaded or made now."""
    task = bench.files.task
    return not (task is not None and task.is_running) and not bench.machine.is_measuring


def _done(bench: Workbench, task: FileTask) -> None:
    """Draw the path of the new file, and the actions on it."""
    first = task.result()[0]
    is_model = first.suffix.lower() == ".gguf"
    st.caption(plain(f"{task.name} is ready: {readable(first if is_model else first.parent)}"))
    with st.container(horizontal=True, gap="small"):
        if is_model:
            _button("Load", "play_arrow", lambda: bench.model_manager.load(first))
            _button("Open", "open_in_new", lambda: place.go(place.LIBRARY, first))
        _button("Close", "close", bench.files.dismiss)


def _failed(bench: Workbench, task: FileTask) -> None:
    """Draw why the task ended, and how to continue."""
    if task.state == "stopped":
        st.caption(plain(str(task.error)))
    else:
        notice(str(task.error))
    with st.container(horizontal=True, gap="small"):
        _button("Retry" if task.kind != "get" else "Continue", "refresh", bench.files.again)
        if task.can_discard:
            _button("Discard partial download", "delete", lambda: bench.files.dismiss(discard=True))
        _button("Close", "close", bench.files.dismiss)


def _button(label: str, icon: str, action: Callable[[], object]) -> None:
    st.button(
        label, icon=f":material/{icon}:", key=f"models_file_{icon}", type="tertiary", on_click=act, args=(action,)
    )
