"""Background tasks: state, progress, time left, stop and result of work in a thread of its own."""

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Final, Generic, Literal, NamedTuple, Self, TypeVar

from engine.errors import ConfigError, EngineError, JobTimeout

State = Literal["waiting", "running", "done", "failed", "stopped"]
ByPace = Literal["by pace"]
BY_PACE: Final = "by pace"

LEAST_SHARE = 0.05
"""Below it nothing is said of the time left by the pace so far."""

SMOOTHED_OVER_S = 10.0
"""Time constant of the filter over estimates of the time left."""

ENDS_WITHIN_S = 4.0
"""How long after a stop closing waits for the end; what hangs for longer is left to the end of the process."""

T = TypeVar("T")
U = TypeVar("U")
_log = logging.getLogger(__name__)


class Stopped(EngineError):
    """Somebody ended the task."""


class Progress(NamedTuple):
    """Progress of a task.

    share: done, 0 to 1. doing: what is being done, in words. left_s: seconds left, None where unknown.
    """

    share: float = 0.0
    doing: str = ""
    left_s: float | None = None


class TimeLeft:
    """Estimate of the seconds left: counts down between reports, and an outlier among them hardly moves it."""

    def __init__(self) -> None:
        self._left_s: float | None = None
        self._at = 0.0

    def report(self, left_s: float | None, now: float) -> None:
        """Take in an estimate made at `now`, in seconds of a monotonic clock; None or no finite number: unknown."""
        before = self.at(now)
        if left_s is None or not math.isfinite(left_s):
            self._left_s = None
        elif before is None:
            self._left_s = left_s
        else:
            self._left_s = before + (left_s - before) * -math.expm1((self._at - now) / SMOOTHED_OVER_S)
        self._at = now

    def at(self, now: float) -> float | None:
        """Seconds left at `now`; None where unknown."""
        return None if self._left_s is None else max(0.0, self._left_s - (now - self._at))


class Task(Generic[T]):
    """Work that is done once, in a thread of its own. Any thread may look at it, wait for it and stop it.

    name: what it is, for the beginning of a sentence. `work` is given the task, reports its progress by `update` or
    `follow`, and ends soon after `stop`: the next `update` raises Stopped. Any failure becomes `error`, a defect too.
    waits_for: what the work waits for, set by the work; empty while it goes on. error: why there is no result.
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

    # what anybody may read

    @property
    def state(self) -> State:
        """Where it is; "waiting" before it begins, and while the work waits for something."""
        return "waiting" if self._state == "running" and self.waits_for else self._state

    @property
    def is_running(self) -> bool:
        """False once it is over, in whatever way; true also before it begins."""
        return not self._over.is_set()

    @property
    def is_stopped(self) -> bool:
        """True once somebody wants it to end."""
        return self._stopping.is_set()

    @property
    def progress(self) -> Progress:
        """How far it is. The share never falls; left_s is seconds, or None."""
        with self._lock:
            look = self._look if self._state == "running" else None
        reported = look() if look is not None else None
        with self._lock:
            if reported is not None:
                self._note(*reported)
            if self._over.is_set():
                return Progress(self._share, self._doing, 0.0)
            return Progress(self._share, self._doing, self._left.at(self._clock()))

    @property
    def share(self) -> float:
        """How much is done, 0 to 1; never falls."""
        return self.progress.share

    @property
    def doing(self) -> str:
        """What is being done, in words."""
        return self.progress.doing

    @property
    def left_s(self) -> float | None:
        """Seconds until it is done, estimated; None where unknown, 0 once it is over."""
        return self.progress.left_s

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; False where it is not over after `timeout` seconds."""
        return self._over.wait(timeout)

    def result(self, timeout: float | None = None) -> T:
        """What came of it. Waits; raises `error`, and JobTimeout where it goes on for more than `timeout` seconds."""
        if not self._over.wait(timeout):
            raise JobTimeout(f"{self.name} was not done within {timeout:g} s; it goes on.")
        if self.error is not None:
            raise self.error.bare()
        return self._results[0]

    # the beginning and the end

    def start(self, held: AbstractContextManager[object] | None = None) -> Self:
        """Begin, once. `held` is entered now and left at the end, in whatever way, before those who wait go on."""
        self._held.enter_context(held or nullcontext())
        try:
            threading.Thread(target=self.run, name=f"logitbench: {self.name}", daemon=True).start()
        except BaseException:
            self._held.close()
            raise
        return self

    def run(self) -> None:
        """Do the work in this thread, once; its failure is `error`. Raises ConfigError the second time."""
        work = self._take_work()
        try:
            with self._held:
                self.check()
                self._results.append(work(self))
        except EngineError as error:
            self.error = error.bare()
        except Exception as defect:
            _log.exception("%s failed", self.name)
            self.error = EngineError(f"{self.name} failed, through a defect of this program: {defect!r}")
        finally:
            self._end()

    def let_go(self) -> None:
        """Leave what `start` was given before the end; for the work, where something else is to have it next."""
        self._held.close()

    def stop(self) -> None:
        """Have it end soon; returns at once. Nothing happens where it is over."""
        with self._lock:
            if self._over.is_set() or self._stopping.is_set():
                return
            self._stopped_at = time.monotonic()
            self._stopping.set()
            if self._kill is not None:
                self._kill_apart(self._kill)

    def close(self) -> bool:
        """Stop, and wait until ENDS_WITHIN_S after the first stop; False where it goes on."""
        self.stop()
        return self.wait(max(0.0, self._stopped_at + ENDS_WITHIN_S - time.monotonic()))

    # what the work says and asks

    def update(self, share: float = 0.0, doing: str | None = None, left_s: float | ByPace | None = BY_PACE) -> None:
        """Report progress as `report` does. Raises Stopped where somebody wants the task to end."""
        self.check()
        self.report(share, doing, left_s)

    def report(self, share: float = 0.0, doing: str | None = None, left_s: float | ByPace | None = BY_PACE) -> None:
        """Say how far it is; what is left out stays. left_s by pace: the rest takes as long as what is done took."""
        with self._lock:
            self._note(share, self._doing if doing is None else doing, left_s)

    def follow(self, look: Callable[[], Progress]) -> None:
        """From now on progress is what `look` gives, called by whoever reads it; it raises nothing."""
        with self._lock:
            self._look = look

    def on_stop(self, kill: Callable[[], object]) -> None:
        """From now on `stop` calls this in a thread of its own; it is called now where the task was stopped already."""
        with self._lock:
            self._kill = kill
            if self._stopping.is_set():
                self._kill_apart(kill)

    def check(self) -> None:
        """Raise Stopped where somebody wants the task to end."""
        if self._stopping.is_set():
            raise Stopped(f"{self.name} was stopped.")

    def sleep(self, seconds: float) -> None:
        """Wait so long, or until somebody wants the task to end."""
        self._stopping.wait(seconds)

    def include(self, other: "Task[U]") -> U:
        """Do another task in this thread as part of this one's work, with its progress and Stop; raises its error."""
        self.follow(lambda: other.progress)
        self.on_stop(other.stop)
        other.run()
        return other.result()

    def _take_work(self) -> "Callable[[Task[T]], T]":
        with self._lock:
            work, self._work = self._work, None  # what it refers to may be large
            if work is None:
                raise ConfigError(f"{self.name} was begun already, and is done once.")
            self._state, self._began = "running", self._clock()
            return work

    def _end(self) -> None:
        with self._lock:
            if self._results:
                self._state, self._share = "done", 1.0
            else:
                self._state = "stopped" if self._stopping.is_set() else "failed"
                self.error = self.error or EngineError(f"{self.name} was broken off.")
            self._look = self._kill = None
            self._over.set()

    def _note(self, share: float, doing: str, left_s: float | ByPace | None) -> None:
        """Take in a report; called with the lock held."""
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
                _log.exception("%s could not be stopped at once", self.name)

        threading.Thread(target=call, name=f"logitbench: stop {self.name}", daemon=True).start()


K = TypeVar("K", bound=Task[Any])


class TaskRunner(Generic[K]):
    """Runs one task at a time, and keeps the last one. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: K | None = None

    @property
    def last(self) -> K | None:
        """The task that runs, else the one that ran last, until `dismiss`."""
        return self._last

    @property
    def running(self) -> K | None:
        """The task that runs, if one does."""
        task = self._last
        return task if task is not None and task.is_running else None

    def start(self, task: K, acquire: Callable[[], AbstractContextManager[object]] = nullcontext) -> K:
        """Begin `task`, which holds what `acquire` gives until its end.

        Raises ConfigError while another one runs, and what `acquire` raises; nothing has begun then.
        """
        with self._lock:
            running = self.running
            if running is not None:
                raise ConfigError(
                    f"{running.name} is not done yet, and one is done at a time. Wait for it, or stop it."
                )
            before, held = self._last, acquire()
            try:
                self._last = task  # the task may look for itself here as soon as it has begun
                return task.start(held)
            except BaseException:
                self._last = before
                raise

    def stop(self) -> None:
        """Have the task that runs end soon; nothing happens where none does."""
        task = self._last
        if task is not None:
            task.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no task runs, also for one that is about to begin; False after `timeout` seconds."""
        with self._lock:
            task = self._last
        return task is None or task.wait(timeout)

    def dismiss(self) -> None:
        """Forget the last task; nothing happens where it runs."""
        with self._lock:
            if self.running is None:
                self._last = None

    def close(self) -> None:
        """Stop, and wait for the end as Task.close does, also for one that is about to begin."""
        with self._lock:
            task = self._last
        if task is not None and not task.close():
            _log.warning("%s did not end within %g s of its stop", task.name, ENDS_WITHIN_S)
