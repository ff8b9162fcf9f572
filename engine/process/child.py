"""Child process as seen by its parent: start, log, shutdown, and a description of how it ended."""

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, TypeVar

import psutil

from engine.errors import ProgramFailed
from engine.owner import OwnerProcess
from engine.process.limits import Limits

T = TypeVar("T")
_Starts = SimpleQueue[tuple["Future[Any]", Callable[[], Any]]]

_ROOT = Path(__file__).resolve().parents[2]
_LONGEST_TAIL = 2000
_HUGE_PAGES = "glibc.malloc.hugetlb"
_MOST_LOG_BYTES = 1 << 20
LOG_TAIL = "; the end of its log:"
"""Words in front of the tail of a log that is quoted in a message."""


class Child:
    """Child process running `MODULE.main(socket, *words)`; `socket` is the parent's end of the socket pair.

    It ends with this process, on Linux even when it hangs or is suspended. `build` is the folder of llama.cpp libraries
    that it loads, empty for those of the Python package. started_at: monotonic seconds. parent: the process that
    started it. Raises ProgramFailed where no process can be started.
    """

    def __init__(
        self,
        module: str,
        *words: str,
        limits: Limits | None = None,
        environment: Mapping[str, str] | None = None,
        build: str = "",
    ) -> None:
        try:
            self._start(module, words, limits or Limits(), environment or {}, build)
        except OSError as error:
            raise ProgramFailed(
                f"a child process cannot be started ({error}): the installation or the system's limits have changed; "
                "restart this program"
            ) from error

    def _start(
        self, module: str, words: Sequence[str], limits: Limits, environment: Mapping[str, str], build: str
    ) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - the child writes to it as long as it lives
        fcntl.fcntl(self._log, fcntl.F_SETFL, fcntl.fcntl(self._log, fcntl.F_GETFL) | os.O_APPEND)
        self._last_words = ""
        self.parent = OwnerProcess()
        self._closing = threading.Lock()
        self._num_oom = num_oom_kills()
        self.socket, theirs = _socket_pair()
        self.started_at = time.monotonic()
        command = [sys.executable, "-P", "-m", "engine.process", module, str(theirs.fileno()), str(os.getpid())]
        try:
            self.process = _started(
                lambda: subprocess.Popen(
                    [*command, limits.word(), *words],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    env=environment_for(build) | dict(environment),
                )
            )
        except BaseException:
            for end in (self.socket, self._log):
                end.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        """False once the process has ended."""
        return self.process.poll() is None

    @property
    def is_suspended(self) -> bool:
        """True while a signal (SIGSTOP, SIGTSTP) keeps the process from running."""
        return is_suspended(self.pid)

    @property
    def is_machine_lost(self) -> bool:
        """False: it runs on this machine."""
        return False

    def hang_up(self) -> None:
        """Shut the socket down, which makes the child exit; does not wait. Does nothing in a fork of the parent."""
        if not self.parent.is_this:
            return
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """Kill the process (SIGKILL) without waiting for it; may be called from any thread."""
        if self.parent.is_this:
            self.process.kill()

    def close(self, patience_s: float = 3.0) -> None:
        """Hang up and wait for the process to exit; kill it after `patience_s` seconds. Safe to call twice."""
        if not self.parent.is_this:
            return
        self.hang_up()
        self.socket.close()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with self._closing:
            if not self._log.closed:
                self._last_words = log_tail(self._log)
                self._log.close()

    def log_tail(self) -> str:
        """Return the tail of the log, worded as the end of a sentence."""
        with self._closing:
            return self._last_words if self._log.closed else log_tail(self._log)

    def shorten_log(self) -> None:
        """Cut a log of more than 1 MiB down to its tail, for a child that logs as long as it runs."""
        with self._closing:
            size = 0 if self._log.closed else os.fstat(self._log.fileno()).st_size
            if size > _MOST_LOG_BYTES:
                tail = os.pread(self._log.fileno(), _LONGEST_TAIL, size - _LONGEST_TAIL)
                os.ftruncate(self._log.fileno(), 0)
                os.write(self._log.fileno(), tail)

    def ending(self) -> str:
        """Describe how the process ended, as a predicate ("crashed (SIGSEGV)"); call `close` first."""
        return ending(self.process.returncode, self._num_oom, self._last_words)

    def ending_of(self, status: int) -> str:
        """Describe how a process that this child forked ended, given its exit status."""
        return ending(status, self._num_oom, self.log_tail())


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return a socket pair beyond the standard streams: where those are closed, what is printed would go into it."""
    pair = socket.socketpair()
    try:
        first, second = (fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3) for end in pair)
    finally:
        for end in pair:
            end.close()
    return socket.socket(fileno=first), socket.socket(fileno=second)


def _started(start: Callable[[], T]) -> T:
    """Call `start` on the thread that starts all children, and return its result.

    The kernel kills a child when the thread that started it ends, see `parent_death`; this one ends with the process.
    """
    started: Future[T] = Future()
    _starts(os.getpid()).put((started, start))
    return started.result()


@cache
def _starts(_pid: int) -> _Starts:
    """Return the queue of that thread, which is started here: once in each process, as a fork has no threads."""
    starts: _Starts = SimpleQueue()
    threading.Thread(target=_start_all, args=(starts,), name="logitbench-start", daemon=True).start()
    return starts


def _start_all(starts: _Starts) -> None:
    while True:
        started, start = starts.get()
        try:
            started.set_result(start())
        except BaseException as error:
            started.set_exception(error)


def environment_for(build: str = "") -> dict[str, str]:
    """Return the environment of a child: this process's, with the package on PYTHONPATH and no backtrace on a crash.

    build: folder of the llama.cpp libraries to load, empty for those of the Python package.
    """
    environment = os.environ | {
        "ARROW_DEFAULT_MEMORY_POOL": "system",  # its own would reserve 1 GiB of the limited address space at once
        "GGML_NO_BACKTRACE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH")))),
    }
    return environment | {"LLAMA_CPP_LIB_PATH": build} if build else environment


def is_suspended(pid: int) -> bool:
    """Return True while a signal (SIGSTOP, SIGTSTP) keeps the process from running; False if it has ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def huge_pages() -> dict[str, str]:
    """Return the environment variable that makes glibc ask for huge pages, for children that hold weights.

    Weights are then read faster (docs/decisions/0009). A value that the person has set takes precedence.
    """
    given = os.environ.get("GLIBC_TUNABLES", "")
    tunables = given if _HUGE_PAGES in given else ":".join(filter(None, (given, f"{_HUGE_PAGES}=1")))
    return {"GLIBC_TUNABLES": tunables}


def log_tail(log: IO[Any]) -> str:
    """Return the tail of an open log, worded as the end of a sentence; empty if nothing was written.

    Control characters are left out, but for line breaks and tabs: a child also logs text of the files that it reads.
    """
    size = os.fstat(log.fileno()).st_size
    tail = os.pread(log.fileno(), _LONGEST_TAIL, max(0, size - _LONGEST_TAIL)).decode("utf-8", "replace")
    words = "".join(mark for mark in tail if mark in "\n\t" or unicodedata.category(mark) != "Cc").strip()
    return f"{LOG_TAIL}\n{words}" if words else ""


def num_oom_kills() -> int:
    """Return the number of processes that the OOM killer has ended since boot; 0 if the system does not report it."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def ending(status: int, num_oom_before: int, tail: str) -> str:
    """Describe how a process ended, as the predicate of a sentence whose subject is the process.

    status: as subprocess reports it, negative for a signal. num_oom_before: num_oom_kills() when it was started.
    tail: its log_tail, omitted if the process was killed or out of time, as it could not log the reason.
    """
    if status == -signal.SIGKILL:
        is_oom = num_oom_kills() > num_oom_before
        return "was killed by the system (out of memory)" if is_oom else "was killed (SIGKILL)"
    if status == -signal.SIGXCPU:
        return "used up its processor time (SIGXCPU)"
    how = f"crashed ({signal.Signals(-status).name})" if status < 0 else f"exited with status {status}"
    return how + tail
