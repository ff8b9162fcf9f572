"""Work in a thread of its own, waited for with its progress on standard error."""

import math
import sys
from typing import TypeVar

from engine.commands.progress_line import ProgressLine
from engine.errors import EngineError, JobTimeout
from engine.models.work import Progress, Work
from engine.units import duration, percent, quantity

SHOWN_EVERY_S = 0.5

T = TypeVar("T")


def watch(work: Work[T]) -> T:
    """Start it, and wait for its result. Raises what ended it; after Ctrl+C it is stopped and says what stays."""
    line = ProgressLine()
    work.start()
    try:
        while True:
            try:
                return work.result(SHOWN_EVERY_S)
            except JobTimeout:
                progress = work.progress
                line.show(_told(progress), step=int(10 * progress.share))
    except KeyboardInterrupt:
        work.cancel()
        try:
            work.result()
        except EngineError as stopped:
            print(f"\n{stopped}", file=sys.stderr)
        raise
    finally:
        line.end()


def _told(progress: Progress) -> str:
    if not progress.total_bytes:
        return progress.state
    left = f", {duration(progress.left_s)} left" if math.isfinite(progress.left_s) else ""
    return (
        f"{progress.state}: {quantity(progress.num_bytes, 'B')} of {quantity(progress.total_bytes, 'B')}, "
        f"{percent(progress.share)}{left}"
    )
