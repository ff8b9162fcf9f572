"""Resource limits: of a child program, set by itself before it imports anything, and of a server's memory."""

import contextlib
import ctypes
import math
import resource
import sys
from typing import NamedTuple, Self

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # <malloc.h>


class Limits(NamedTuple):
    """Resources that a child may use, None for no limit.

    memory_bytes: address space (RLIMIT_AS); Linux alone holds it. cpu_s: processor seconds of one request
    (RLIMIT_CPU). file_bytes: size of each file it writes, its log among them (RLIMIT_FSIZE).
    """

    memory_bytes: int | None = None
    cpu_s: int | None = None
    file_bytes: int | None = None

    def word(self) -> str:
        """The limits as one word of a command line, which `parse` reads."""
        return ",".join("" if value is None else str(value) for value in self)

    @classmethod
    def parse(cls, word: str) -> Self:
        """Read what `word` wrote."""
        return cls(*(int(value) if value else None for value in word.split(",")))


_applied = Limits()


def apply(limits: Limits) -> None:
    """Limit this process for good; a crash leaves no core file then."""
    global _applied
    _applied = limits
    if limits != Limits():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits.memory_bytes is not None and sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    if limits.file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_bytes, limits.file_bytes))


def applied() -> Limits:
    """The limits of this process; none where it is no child program."""
    return _applied


def begin_request() -> None:
    """Grant the processor time of one more request; the kernel ends this process (SIGXCPU) when it is used up."""
    if _applied.cpu_s is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        soft = math.ceil(used.ru_utime + used.ru_stime) + _applied.cpu_s
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def return_freed_memory(num_arenas: int = 2) -> None:
    """Have glibc return what is freed to the system: an arena for each thread keeps what was freed in it, and blocks
    under 32 MB stay in the heap once one of their size was freed. Does nothing where the C library is another.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, num_arenas)
        mallopt(_M_MMAP_THRESHOLD, 1 << 20)
        mallopt(_M_TRIM_THRESHOLD, 2 << 20)
