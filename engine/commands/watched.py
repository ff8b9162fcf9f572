"""Foreground tasks: waits for a task while showing its progress on standard error."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from engine.errors import EngineError
from engine.progress_line import ProgressLine
from engine.tasks import Task
from engine.units import percent

SHOWN_EVERY_S = 0.5

T = TypeVar("T")


def watch(task: Task[T]) -> T:
    """Start a task and return its result. Raises the error that ended it.

    After Ctrl+C the task is stopped, its message about what remains is printed, and KeyboardInterrupt is raised.
    """
    line = ProgressLine()
    task.start()
    try:
        show_progress(task, line)
        return task.result()
    except KeyboardInterrupt:
        task.stop()
        try:
            task.result()
        except EngineError as stopped:
            print(f"\n{stopped}", file=sys.stderr)
        raise
    finally:
        line.end()


def show_progress(task: Task[Any], line: ProgressLine, remark: Callable[[], str] = str) -> None:
    """Show activity, share, time left and a remark of a task until it ends. Ctrl+C does not stop the task."""
    while not task.wait(SHOWN_EVERY_S):
        now = task.progress
        parts = (now.doing or task.state, percent(now.share) if now.share else "", now.left)
        figures = ", ".join(part for part in parts if part)
        line.show("; ".join(part for part in (figures, remark()) if part), step=int(10 * now.share))
