"""Progress of many prompts: how many are done, tokens per second and time left, as a line on standard error."""

import time
from collections.abc import Callable, Iterable, Sized
from typing import NamedTuple, Self

from engine.errors import EngineError
from engine.jobs import Job
from engine.progress_line import ProgressLine
from engine.results import Completion
from engine.tasks import Progress, TimeLeft
from engine.units import counted, duration, quantity

REPORT_EVERY_S = 0.25
_LINE_EVERY_S, _LAST_STEP = 10, 1 << 30


class MapProgress(NamedTuple):
    """Progress of `Pool.map`. num_failed: how many of num_done ended with an error; total: None where unknown.

    num_tokens: tokens generated so far, also by prompts that are not done.
    """

    num_done: int
    num_failed: int
    num_tokens: int
    total: int | None


OnProgress = bool | Callable[[MapProgress], object]
"""What `progress` may be: True for a line on standard error, or a function that is called."""


class PromptsLine:
    """Progress line of many prompts; in a file, a line for each tenth, or every ten seconds where no share is known.

    first_share, num_before: part of the input and number of prompts that were done before.
    """

    def __init__(self, *, first_share: float = 0.0, num_before: int = 0) -> None:
        self._line, self._left = ProgressLine(), TimeLeft()
        self._began = time.monotonic()
        self._first_share, self._num_before = first_share, num_before

    def show(self, now: MapProgress, share: float | None = None, *, is_last: bool = False) -> None:
        """Show the progress. share: part of the input that is done, None: by the number of prompts."""
        elapsed_s = max(time.monotonic() - self._began, 1e-9)
        if share is None and now.total:
            share = now.num_done / now.total
        gained = 0.0 if share is None else share - self._first_share
        left_s = elapsed_s * (1 - (share or 0)) / gained if gained > 0 else None
        self._left.report(left_s, self._began + elapsed_s)
        left = Progress(left_s=self._left.at(self._began + elapsed_s), is_least=self._left.is_least).left
        if is_last:
            left = f"in {duration(elapsed_s)}"
        elif share is not None and share >= 1:
            left = ""
        step = _LAST_STEP if is_last else int(elapsed_s / _LINE_EVERY_S) if share is None else int(10 * share)
        self._line.show(self._text(now, elapsed_s, left), step=step)

    def _text(self, now: MapProgress, elapsed_s: float, left: str) -> str:
        num_done = self._num_before + now.num_done
        of = "" if now.total is None else f"{num_done:,} of "
        parts = [of + counted(num_done if now.total is None else now.total, "prompt")]
        if now.num_failed:
            parts.append(f"{now.num_failed:,} failed")
        if now.num_tokens:
            parts.append(quantity(now.num_tokens / elapsed_s, "tok/s"))
        return ", ".join([*parts, left] if left else parts)

    def end(self) -> None:
        """End the line on a terminal."""
        self._line.end()


class MapTally:
    """Count of what a map has yielded, reported to `progress` at most four times a second and at the end."""

    def __init__(self, prompts: Iterable[object], progress: OnProgress) -> None:
        self._total = len(prompts) if isinstance(prompts, Sized) else None
        self._line = PromptsLine() if progress is True else None
        self._call = progress if callable(progress) else None
        self._reported_at = 0.0
        self._num_done = self._num_failed = self._num_tokens = 0

    @property
    def is_silent(self) -> bool:
        """True where nothing is reported."""
        return self._line is None and self._call is None

    def count(self, outcome: Completion | EngineError) -> None:
        """Count a prompt whose outcome is yielded."""
        self._num_done += 1
        if isinstance(outcome, Completion):
            self._num_tokens += len(outcome.steps)
        else:
            self._num_failed += 1

    def report(self, open_jobs: Iterable[Job | EngineError]) -> None:
        """Report the progress, `open_jobs` included, unless the last report is less than REPORT_EVERY_S old."""
        if self.is_silent or time.monotonic() - self._reported_at < REPORT_EVERY_S:
            return
        num_done, num_failed, num_tokens = self._num_done, self._num_failed, self._num_tokens
        for job in open_jobs:
            error = (job.exception() if job.done() else None) if isinstance(job, Job) else job
            num_done += not isinstance(job, Job) or job.done()
            num_failed += error is not None
            num_tokens += len(job.steps) if isinstance(job, Job) else 0
        self._report(MapProgress(num_done, num_failed, num_tokens, self._total))

    def _report(self, now: MapProgress, *, is_last: bool = False) -> None:
        self._reported_at = time.monotonic()
        if self._call is not None:
            self._call(now)
        if self._line is not None:
            self._line.show(now, is_last=is_last)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        try:
            if kind is None:
                self._report(MapProgress(self._num_done, self._num_failed, self._num_tokens, self._total), is_last=True)
        finally:
            if self._line is not None:
                self._line.end()
