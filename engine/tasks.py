"""Background tasks: state, progress, time left, stop and result of work in its own thread."""

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Final, Generic, Literal, NamedTuple, Self, TypeVar

from engine.errors import ConfigError, EngineError, JobTimeout
from engine.units import duration

State = Literal["waiting", "running", "done", "failed", "stopped"]
ByPace = Literal["by pace"]
BY_PACE: Final = "by pace"

LEAST_SHARE = 0.05
"""Minimum share done before the time left is extrapolated from the pace so far."""

SMOOTHED_OVER_S = 10.0
"""Time constant of the filter over estimates of the time left."""

LEAST_FROM, UNSAID_FROM = 1.25, 4.0
"""Ratios of the estimate to the time left that is said: from the first on it is called a lower bound, from the second
on it would say too little."""

ENDS_WITHIN_S = 4.0
"""Seconds after a stop that `close` waits for the end; a task that hangs for longer runs until the process ends."""

T = TypeVar("T")
U = TypeVar("U")
_log = logging.getLogger(__name__)


class Stopped(EngineError):
    """The task was stopped."""


class Progress(NamedTuple):
    """Progress of a task.

    share: part done, 0 to 1. doing: current activity, in words. left_s: seconds left, None where unknown. is_least: the
    estimate has grown, so that left_s is a lower bound, or None where it would say too little.
    """

    share: float = 0.0
    doing: str = ""
    left_s: float | None = None
    is_least: bool = False

    @property
    def left(self) -> str:
        """The time left in words: "2 min left", "at least 2 min left", "longer than estimated"; empty where unknown."""
        if self.left_s is None:
            return "longer than estimated" * self.is_least
        return f"{'at least ' * self.is_least}{duration(self.left_s)} left"


class TimeLeft:
    """Estimate of the seconds left that never rises, and is robust to outliers.

    Reports are smoothed, and the estimate counts down between them. What is said is the lowest estimate so far; where
    the estimate grows, that becomes a lower bound which falls in proportion to the estimate, so that both reach 0 at
    the same moment. A time that is reported as unknown ends this: the next report starts anew.
    """

    def __init__(self) -> None:
        self._estimate_s: float | None = None
        self._ratio = 1.0
        self._at = 0.0

    def report(self, left_s: float | None, now: float) -> None:
        """Record an estimate made at `now`, in seconds of a monotonic clock; None or a non-finite number: unknown."""
        before = self._estimate_at(now)
        if left_s is None or not math.isfinite(left_s):
            self._estimate_s = None
        elif before is None:
            self._estimate_s, self._ratio = left_s, 1.0
        else:
            said = before * self._ratio
            self._estimate_s = before + (left_s - before) * -math.expm1((self._at - now) / SMOOTHED_OVER_S)
            self._ratio = min(1.0, said / self._estimate_s) if self._estimate_s > 0 else 1.0
        self._at = now

    def at(self, now: float) -> float | None:
        """Return the seconds left at `now`; None where unknown, also where a lower bound would say too little."""
        estimate = self._estimate_at(now)
        return None if estimate is None or self._ratio * UNSAID_FROM <= 1 else estimate * self._ratio

    @property
    def is_least(self) -> bool:
        """True where the estimate has grown, so that the seconds left are a lower bound."""
        return self._estimate_s is not None and self._ratio * LEAST_FROM <= 1

    def _estimate_at(self, now: float) -> float | None:
        return None if self._estimate_s is None else max(0.0, self._estimate_s - (now - self._at))


class Task(Generic[T]):
    """Task that runs once in its own thread. Any thread may inspect it, wait for it and stop it.

    name: subject of messages, at the beginning of a sentence. `work` receives the task, reports its progress by
    `update` or `follow`, and ends soon after `stop`: the next `update` raises Stopped. Any exception becomes `error`,
    including a defect. waits_for: what the work waits for, set by the work; empty while it runs. error: why there is no
    result.
    """

    def __init__(
        self, name: str, work: Callable[["Task[T]"], T], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name, self.waits_for = name, ""
        self.error: EngineError | None = None
        self._work: Callable[[Task[T]], T] | None = work
        self._clock, self._began = clock, clock()
        self._lock = threading.RLock()
        self._stopping, self._over = threading.Event(), threading.Event()
        self._state: State = "waiting"
        self._share, self._doing, self._left = 0.0, "", TimeLeft()
        self._stopped_at = 0.0
        self._look: Callable[[], Progress] | None = None
        self._kill: Callable[[], object] | None = None
        self._held = ExitStack()
        self._results: list[T] = []

    # Status, from any thread

    @property
    def state(self) -> State:
        """State of the task; "waiting" before it starts, and while the work waits for something."""
        return "waiting" if self._state == "running" and self.waits_for else self._state

    @property
    def is_running(self) -> bool:
        """False once it has ended in any way; true also before it starts."""
        return not self._over.is_set()

    @property
    def is_stopped(self) -> bool:
        """True once a stop was requested."""
        return self._stopping.is_set()

    @property
    def progress(self) -> Progress:
        """Current progress. The share never falls; left_s is seconds, or None, and never rises while it is known."""
        with self._lock:
            look = self._look if self._state == "running" else None
        reported = look() if look is not None else None
        with self._lock:
            if reported is not None:
                self._note(reported.share, reported.doing, reported.left_s)
            if self._over.is_set():
                return Progress(self._share, self._doing, 0.0)
            return Progress(self._share, self._doing, self._left.at(self._clock()), self._left.is_least)

    @property
    def share(self) -> float:
        """Share done, 0 to 1; never decreases."""
        return self.progress.share

    @property
    def doing(self) -> str:
        """Current activity, in words."""
        return self.progress.doing

    @property
    def left_s(self) -> float | None:
        """Estimated seconds until it is done; None where unknown, 0 once it has ended."""
        return self.progress.left_s

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; return False where it has not ended after `timeout` seconds."""
        return self._over.wait(timeout)

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result; raises `error`, and JobTimeout where the task has not ended after `timeout` seconds."""
        if not self._over.wait(timeout):
            raise JobTimeout(f"{self.name} did not finish within {timeout:g} s; it continues.")
        if self.error is not None:
            raise self.error.bare()
        return self._results[0]

    # Start and end

    def start(self, held: AbstractContextManager[object] | None = None) -> Self:
        """Start the task, once. `held` is entered now and exited at the end, however it ends, before waiters resume."""
        self._held.enter_context(held or nullcontext())
        try:
            threading.Thread(target=self.run, name=f"logitbench: {self.name}", daemon=True).start()
        except BaseException:
            self._held.close()
            raise
        return self

    def run(self) -> None:
        """Run the work in this thread, once; an exception becomes `error`. Raises ConfigError on a second call."""
        work = self._take_work()
        try:
            with self._held:
                self.check()
                self._results.append(work(self))
        except EngineError as error:
            self.error = error.bare()
        except Exception as defect:
            _log.exception("%s failed", self.name)
            self.error = EngineError(f"{self.name} failed because of a defect in this program: {defect!r}")
        finally:
            self._end()

    def let_go(self) -> None:
        """Exit the context manager passed to `start` before the end; called by the work to release it early."""
        self._held.close()

    def stop(self) -> None:
        """Request a stop; returns at once. Does nothing where the task has ended."""
        with self._lock:
            if self._over.is_set() or self._stopping.is_set():
                return
            self._stopped_at = time.monotonic()
            self._stopping.set()
            if self._kill is not None:
                self._kill_apart(self._kill)

    def close(self) -> bool:
        """Stop, and wait until ENDS_WITHIN_S after the first stop; return False where the task still runs."""
        self.stop()
        return self.wait(max(0.0, self._stopped_at + ENDS_WITHIN_S - time.monotonic()))

    # Called by the work

    def update(self, share: float = 0.0, doing: str | None = None, left_s: float | ByPace | None = BY_PACE) -> None:
        """Report progress as `report` does. Raises Stopped where a stop was requested."""
        self.check()
        self.report(share, doing, left_s)

    def report(self, share: float = 0.0, doing: str | None = None, left_s: float | ByPace | None = BY_PACE) -> None:
        """Report progress; `doing` None leaves it unchanged. left_s by pace: extrapolate from the time taken so far."""
        with self._lock:
            self._note(share, self._doing if doing is None else doing, left_s)

    def follow(self, look: Callable[[], Progress]) -> None:
        """Take progress from `look` from now on, which is called in the reader's thread and must not raise."""
        with self._lock:
            self._look = look

    def on_stop(self, kill: Callable[[], object]) -> None:
        """Have `stop` call `kill` in its own thread; it is called now where the task was stopped already."""
        with self._lock:
            self._kill = kill
            if self._stopping.is_set():
                self._kill_apart(kill)

    def check(self) -> None:
        """Raise Stopped where a stop was requested."""
        if self._stopping.is_set():
            raise Stopped(f"{self.name} was stopped.")

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`, or until a stop is requested."""
        self._stopping.wait(seconds)

    def include(self, other: "Task[U]") -> U:
        """Run another task in this thread as part of this one, sharing its progress and stop; raises its error."""
        self.follow(lambda: other.progress)
        self.on_stop(other.stop)
        other.run()
        return other.result()

    def _take_work(self) -> "Callable[[Task[T]], T]":
        with self._lock:
            work, self._work = self._work, None  # its closure may be large
            if work is None:
                raise ConfigError(f"{self.name} has already been started, and runs only once.")
            self._state, self._began = "running", self._clock()
            return work

    def _end(self) -> None:
        with self._lock:
            if self._results:
                self._state, self._share = "done", 1.0
            else:
                self._state = "stopped" if self._stopping.is_set() else "failed"
                self.error = self.error or EngineError(f"{self.name} was interrupted.")
            self._look = self._kill = None
            self._over.set()

    def _note(self, share: float, doing: str, left_s: float | ByPace | None) -> None:
        """Record a report; called with the lock held."""
        now = self._clock()
        self._share, self._doing = min(max(self._share, share), 1.0), doing
        if left_s == BY_PACE:
            is_known = self._share >= LEAST_SHARE
            left_s = (now - self._began) * (1 - self._share) / self._share if is_known else None
        self._left.report(left_s, now)

    def _kill_apart(self, kill: Callable[[], object]) -> None:
        def call() -> None:
            try:
                kill()
            except Exception:
                _log.exception("%s could not be stopped", self.name)

        threading.Thread(target=call, name=f"logitbench: stop {self.name}", daemon=True).start()


K = TypeVar("K", bound=Task[Any])


class TaskRunner(Generic[K]):
    """Task runner: runs one task at a time and retains the last one. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: K | None = None

    @property
    def last(self) -> K | None:
        """The running task, else the last one, until `dismiss`."""
        return self._last

    @property
    def running(self) -> K | None:
        """The running task, if any."""
        task = self._last
        return task if task is not None and task.is_running else None

    def start(self, task: K, acquire: Callable[[], AbstractContextManager[object]] = nullcontext) -> K:
        """Start `task`, which holds the context manager returned by `acquire` until its end.

        Raises ConfigError while another task runs, and what `acquire` raises; nothing was started then.
        """
        with self._lock:
            running = self.running
            if running is not None:
                raise ConfigError(
                    f"{running.name} is still running, and only one runs at a time. Wait for it, or stop it."
                )
            before, held = self._last, acquire()
            try:
                self._last = task  # set first: the task may read `last` as soon as it has started
                return task.start(held)
            except BaseException:
                self._last = before
                raise

    def stop(self) -> None:
        """Request a stop of the running task; does nothing where none runs."""
        task = self._last
        if task is not None:
            task.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no task runs, including one that is about to start; return False after `timeout` seconds."""
        with self._lock:
            task = self._last
        return task is None or task.wait(timeout)

    def dismiss(self) -> None:
        """Forget the last task; does nothing where it still runs."""
        with self._lock:
            if self.running is None:
                self._last = None

    def close(self) -> None:
        """Stop, and wait for the end as Task.close does, including a task that is about to start."""
        with self._lock:
            task = self._last
        if task is not None and not task.close():
            _log.warning("%s did not end within %g s of its stop", task.name, ENDS_WITHIN_S)
