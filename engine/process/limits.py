"""Resource limits: a child program applies its own before it imports anything; settings for a server's memory."""

import contextlib
import ctypes
import math
import resource
import sys
from typing import NamedTuple, Self

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # <malloc.h>

DEEP_STACK = 120 << 20
"""Bytes; Linux keeps at least 128 MiB of address space free below a stack."""
OPEN_FILES = 1 << 16
"""Open files that a server may ask for; programs that go through all possible descriptors still do so at once."""


class Limits(NamedTuple):
    """Resource limits of a child process; None for no limit.

    memory_bytes: address space (RLIMIT_AS), enforced on Linux only. cpu_s: CPU seconds per request (RLIMIT_CPU).
    file_bytes: size of each file that it writes, including its log (RLIMIT_FSIZE).
    """

    memory_bytes: int | None = None
    cpu_s: int | None = None
    file_bytes: int | None = None

    def word(self) -> str:
        """Return the limits as one command-line word, to be read by `parse`."""
        return ",".join("" if value is None else str(value) for value in self)

    @classmethod
    def parse(cls, word: str) -> Self:
        """Parse the output of `word`."""
        return cls(*(int(value) if value else None for value in word.split(",")))


_applied = Limits()


def apply(limits: Limits) -> None:
    """Apply the limits to this process permanently; with any limit, core dumps are disabled too."""
    global _applied
    _applied = limits
    if limits != Limits():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits.memory_bytes is not None and sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    if limits.file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_bytes, limits.file_bytes))


def applied() -> Limits:
    """Return the limits of this process; without any if it is not a child program."""
    return _applied


def begin_request() -> None:
    """Grant the CPU time of one more request; the kernel terminates this process (SIGXCPU) once it is used up."""
    if _applied.cpu_s is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        soft = math.ceil(used.ru_utime + used.ru_stime) + _applied.cpu_s
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def allow_deep_recursion() -> None:
    """Let the main thread's stack grow to DEEP_STACK: std::regex, with which llama.cpp splits texts, recurses once per
    character of a run."""
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    with contextlib.suppress(OSError, ValueError):  # macOS sets it when the program starts
        resource.setrlimit(resource.RLIMIT_STACK, (DEEP_STACK if hard < 0 else min(hard, DEEP_STACK), hard))


def raise_open_files() -> int:
    """Raise the soft limit of open files to the hard one, at most to OPEN_FILES; return the limit in force.

    Children inherit it.
    """
    soft, hard = (OPEN_FILES if limit < 0 else limit for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    wanted = min(hard, OPEN_FILES)
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS has a limit of its own below the hard one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            return wanted
    return soft


def return_freed_memory(num_arenas: int = 2) -> None:
    """Make glibc return freed memory to the system; does nothing with another C library.

    By default each thread's arena retains the memory freed in it, and blocks under 32 MB stay in the heap once a block
    of their size has been freed.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, num_arenas)
        mallopt(_M_MMAP_THRESHOLD, 1 << 20)
        mallopt(_M_TRIM_THRESHOLD, 2 << 20)
