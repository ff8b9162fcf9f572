"""Thread counts of a worker: sets them before each decode, and measures the decode for the controller."""

import math
import os
import random
import resource
import time
from contextlib import suppress

from engine.llama.context import Decoder
from engine.llama.thread_controller import Decoded, ThreadController
from engine.specs import PoolSpec

_READ_EVERY_S = 0.004
"""Interval between readings of CPU time and context switches, which are too costly to take more often; shorter decodes
share a reading."""
_IDLE_EVERY_S = 0.2


class IdleCores:
    """Meter of recently idle CPU time on the cores that this process may use, in cores; NaN if not reported."""

    def __init__(self) -> None:
        self._file = -1
        self._names: set[bytes] = set()
        with suppress(OSError, AttributeError):
            self._file = os.open("/proc/stat", os.O_RDONLY | os.O_CLOEXEC)
            self._names = {b"cpu%d" % number for number in os.sched_getaffinity(0)}
        self._read_at, self._idle_s = time.perf_counter(), self._idle_so_far()
        self._idle = math.nan

    def lately(self, now: float) -> float:
        """Return the idle time in cores over the last interval between two readings, at least 0.2 s."""
        elapsed_s = now - self._read_at
        if elapsed_s >= _IDLE_EVERY_S:
            idle_s = self._idle_so_far()
            self._idle = (idle_s - self._idle_s) / elapsed_s
            self._read_at, self._idle_s = now, idle_s
        return self._idle

    def _idle_so_far(self) -> float:
        """Return the total seconds for which the cores were idle or waiting for I/O (proc_stat(5)); NaN if unknown."""
        if self._file < 0 or not self._names:
            return math.nan
        lines = os.pread(self._file, 128 * (2 + (os.cpu_count() or 1)), 0).split(b"\n")
        fields = [line.split() for line in lines if line.startswith(b"cpu")]
        ticks = sum(int(line[4]) + int(line[5]) for line in fields if line[0] in self._names)
        return ticks / os.sysconf("SC_CLK_TCK")


class Threads:
    """Thread counts of one context: adaptive if the pool was given none, else fixed.

    llama.cpp computes a batch of one token with the first count and larger batches with the second. `given`: both
    counts, which an adaptive worker also uses for jobs that must be reproducible. `num_decodes`: decodes by kind (True
    with chunks of prompts) and thread count.
    """

    def __init__(self, context: Decoder, spec: PoolSpec, threads: int, threads_batch: int) -> None:
        self._context = context
        self.given = threads, threads_batch
        self._is_adaptive = spec.threads is None and threads > 1
        self._is_batch_given = spec.threads_batch is not None
        self._controller = ThreadController(threads, random.random)
        self._idle = IdleCores()
        self._set = self.given
        self._is_chosen = False
        self._key = False, threads
        self._used_cpu_s, self._num_switches = _usage()
        self._decoded_s = 0.0
        self._read_at = time.perf_counter()
        self.num_decodes: dict[tuple[bool, int], int] = {}

    def choose(self, num_tokens: int, *, is_prompt: bool, is_exact: bool) -> int:
        """Set and return the thread count for the next decode. is_exact: it must be the given one."""
        chosen = self.given
        self._is_chosen = self._is_adaptive and not is_exact and not (num_tokens > 1 and self._is_batch_given)
        if self._is_chosen:
            number = self._controller.choose(num_tokens, is_prompt=is_prompt)
            chosen = number, number
        if chosen != self._set:
            self._context.set_threads(*chosen)
            self._set = chosen
        self._key = is_prompt, chosen[num_tokens > 1]
        return chosen[num_tokens > 1]

    def decoded(self, elapsed_s: float, ended_at: float) -> None:
        """Record the duration of the decode prepared by the last choose(); ended_at on the clock of perf_counter."""
        self.num_decodes[self._key] = self.num_decodes.get(self._key, 0) + 1
        if not self._is_chosen:
            return
        self._decoded_s += elapsed_s
        cores_used, num_switches = math.nan, 0
        passed_s = ended_at - self._read_at
        if passed_s >= _READ_EVERY_S:
            cpu_s, switches = _usage()
            # between jobs threads sleep, which is no evidence about a decode
            if self._decoded_s > 0.8 * passed_s:
                cores_used = (cpu_s - self._used_cpu_s) / passed_s
                num_switches = switches - self._num_switches
            self._used_cpu_s, self._num_switches, self._read_at = cpu_s, switches, ended_at
            self._decoded_s = 0.0
        self._controller.observe(Decoded(elapsed_s, cores_used, num_switches, self._idle.lately(ended_at)))

    @property
    def in_use(self) -> tuple[int, int]:
        """Current thread counts for generation (single tokens, or steps of several streams) and for prompts."""
        if not self._is_adaptive:
            return self.given
        batch = self.given[1] if self._is_batch_given else self._controller.in_use(is_prompt=True)
        return self._controller.in_use(is_prompt=False), batch

    def mostly_since(self, before: dict[tuple[bool, int], int], *, is_prompt: bool) -> int | None:
        """Return the thread count of most decodes of a kind since `num_decodes` was `before`; None without any."""
        found = {
            number: num - before.get((kind, number), 0)
            for (kind, number), num in self.num_decodes.items()
            if kind == is_prompt and num > before.get((kind, number), 0)
        }
        return max(found, key=found.__getitem__, default=None)


def _usage() -> tuple[float, int]:
    """Return CPU seconds and involuntary context switches of this process, summed over all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_nivcsw
