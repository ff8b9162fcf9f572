"""What every program that this one starts finds in its environment, and in what words its end is told."""

import os
import signal
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).resolve().parents[2]
_LOG_TAIL = 2000


def environment_for(build: str = "") -> dict[str, str]:
    """This process's environment, with the package to be found and crashes that end at once.

    build: folder of the llama.cpp libraries to load, empty for those of the Python package.
    """
    environment = os.environ | {
        "GGML_NO_BACKTRACE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH")))),
    }
    return environment | {"LLAMA_CPP_LIB_PATH": build} if build else environment


def log_tail(log: IO[Any]) -> str:
    """The end of an open log as the end of a sentence; empty where nothing was written."""
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
    """How a program ended, as the rest of a sentence that begins with it.

    status: as subprocess gives it, negative for a signal. num_oom_before: num_oom_kills() when the program was started.
    tail: its log_tail, which is left out where it was killed: then it could not say why.
    """
    if status == -signal.SIGKILL:
        is_oom = num_oom_kills() > num_oom_before
        return "was killed by the system for want of memory" if is_oom else "was killed (SIGKILL)"
    how = f"crashed ({signal.Signals(-status).name})" if status < 0 else f"ended with status {status}"
    return how + tail
