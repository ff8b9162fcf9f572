"""Foreground tasks: waits for a task while showing its progress on standard error."""

import sys
from typing import TypeVar

from engine.commands.progress_line import ProgressLine
from engine.errors import EngineError
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
        while not task.wait(SHOWN_EVERY_S):
            share, doing, left_s = task.progress
            left = "" if left_s is None else f"{duration(left_s)} left"
            told = (doing or task.state, percent(share) if share else "", left)
            line.show(", ".join(part for part in told if part), step=int(10 * share))
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
