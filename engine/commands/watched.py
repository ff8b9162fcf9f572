"""Foreground tasks: waits for a task while showing its progress on standard error."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from engine.errors import EngineError
from engine.progress_line import ProgressLine
from engine.tasks import Task
from engine.units import duration, percent

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
        share, doing, left_s = task.progress
        left = "" if left_s is None else f"{duration(left_s)} left"
        told = ", ".join(part for part in (doing or task.state, percent(share) if share else "", left) if part)
        line.show("; ".join(part for part in (told, remark()) if part), step=int(10 * share))
