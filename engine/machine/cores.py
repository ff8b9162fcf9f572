"""CPU placement: the processor's name, the cores that this process may really use, and the share of each instance."""

import math
import os
import platform
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def cpu_name() -> str:
    """Return the processor's model name, or its architecture if the system does not report one."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def allowed_cores() -> list[int]:
    """Return the core numbers allowed by this process's CPU affinity; all cores if the system has no affinity."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cpu_quota() -> float:
    """Return the CPU limit of the cgroup in cores (v2 cpu.max, v1 cfs quota over period); infinite without one."""
    try:
        limit, period = (_CGROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (_CGROUP / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (_CGROUP / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return math.inf
    try:
        return math.inf if limit in ("max", "-1") else int(limit) / int(period)
    except (ValueError, ZeroDivisionError):
        return math.inf


def num_cores() -> int:
    """Return the number of whole cores that this process may use, at least one."""
    return max(1, math.floor(min(len(allowed_cores()), cpu_quota())))


def threads_for(instances: int) -> int:
    """Return the thread count of each of `instances` processes that share this machine's cores."""
    return max(1, num_cores() // instances)


def cores_for(instance: int, threads: int) -> list[int]:
    """Return `threads` cores for an instance; instances share cores once there are more threads than cores in all."""
    cores = allowed_cores()
    return sorted({cores[(instance * threads + index) % len(cores)] for index in range(threads)})
