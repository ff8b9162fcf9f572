"""One child program from its parent's side: start, log, end, and how it ended in words."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from engine.process.limits import Limits

_ROOT = Path(__file__).resolve().parents[2]
_LOG_TAIL = 2000


class Child:
    """`MODULE.main(socket, *words)` in a process of its own; `socket` is this end of the pair between the two.

    It ends with this process, on Linux even where it is stuck. `build` is the folder of llama.cpp libraries that it
    loads, empty for those of the Python package. started_at: monotonic seconds.
    """

    def __init__(
        self,
        module: str,
        *words: str,
        limits: Limits | None = None,
        environment: Mapping[str, str] | None = None,
        build: str = "",
    ) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - the child writes to it as long as it lives
        self._last_words = ""
        self._closing = threading.Lock()
        self._num_oom = num_oom_kills()
        self.socket, theirs = socket.socketpair()
        lifeline, kept = os.pipe()
        self._lifeline = open(kept, "wb", buffering=0)  # noqa: SIM115 - closed when the child has ended
        self.started_at = time.monotonic()
        command = [sys.executable, "-P", "-m", "engine.process", module, str(theirs.fileno()), str(lifeline)]
        try:
            self.process = subprocess.Popen(
                [*command, (limits or Limits()).word(), *words],
                pass_fds=(theirs.fileno(), lifeline),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=environment_for(build) | dict(environment or {}),
            )
        except BaseException:
            for end in (self.socket, self._lifeline, self._log):
                end.close()
            raise
        finally:
            theirs.close()
            os.close(lifeline)

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        """False once it has ended."""
        return self.process.poll() is None

    def hang_up(self) -> None:
        """Have it see the end of its input, at which it ends, without waiting."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """End it at once (SIGKILL), without waiting; any thread may."""
        self.process.kill()

    def close(self, patience_s: float = 3.0) -> None:
        """Hang up and wait for its end; kill it after `patience_s` seconds. Safe to call twice."""
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
                self._lifeline.close()

    def log_tail(self) -> str:
        """The end of its log, as the end of a sentence."""
        with self._closing:
            return self._last_words if self._log.closed else log_tail(self._log)

    def ending(self) -> str:
        """How it ended, as the rest of a sentence that begins with it; call `close` before."""
        return ending(self.process.returncode, self._num_oom, self._last_words)

    def ending_of(self, status: int) -> str:
        """The same of a process that this child forked, by its status."""
        return ending(status, self._num_oom, self.log_tail())


def environment_for(build: str = "") -> dict[str, str]:
    """Environment of a child: this process's, with the package on the path, and crashes that end at once.

    build: folder of the llama.cpp libraries to load, empty for those of the Python package.
    """
    environment = os.environ | {
        "GGML_NO_BACKTRACE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH")))),
    }
    return environment | {"LLAMA_CPP_LIB_PATH": build} if build else environment


def log_tail(log: IO[Any]) -> str:
    """The end of an open log, as the end of a sentence; empty where nothing was written."""
    size = os.fstat(log.fileno()).st_size
    words = os.pread(log.fileno(), _LOG_TAIL, max(0, size - _LOG_TAIL)).decode("utf-8", "replace").strip()
    return f"; the end of its log:\n{words}" if words else ""


def num_oom_kills() -> int:
    """Processes that this system has killed for want of memory since it started; 0 where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def ending(status: int, num_oom_before: int, tail: str) -> str:
    """How a process ended, as the rest of a sentence that begins with it.

    status: as subprocess gives it, negative for a signal. num_oom_before: num_oom_kills() when it was started.
    tail: its log_tail, left out where it was killed, when it could not say why.
    """
    if status == -signal.SIGKILL:
        is_oom = num_oom_kills() > num_oom_before
        return "was killed by the system for want of memory" if is_oom else "was killed (SIGKILL)"
    how = f"crashed ({signal.Signals(-status).name})" if status < 0 else f"ended with status {status}"
    return how + tail
