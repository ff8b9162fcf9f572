"""What the processor is, how many of its cores this process may really use, and which of them each instance gets."""

import math
import os
import platform
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def cpu_name() -> str:
    """As the processor calls itself; its architecture where the system does not tell."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def allowed_cores() -> list[int]:
    """Numbers of the cores that the affinity of this process allows; all of them where the system has no affinity."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cpu_quota() -> float:
    """Cores' worth of time that the cgroup grants (v2 cpu.max, v1 cfs quota over period); infinite without a limit."""
    try:
        limit, period = (_CGROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (_CGROUP / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (_CGROUP / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return math.inf
    return math.inf if limit in ("max", "-1") else int(limit) / int(period)


def num_cores() -> int:
    """Whole cores that this process may use, at least one."""
    return max(1, math.floor(min(len(allowed_cores()), cpu_quota())))


def threads_for(instances: int) -> int:
    """Threads of each of `instances` processes that share this machine's cores."""
    return max(1, num_cores() // instances)


def cores_for(instance: int, threads: int) -> list[int]:
    """`threads` cores of its own for an instance; they repeat once there are more threads than cores."""
    cores = allowed_cores()
    return sorted({cores[(instance * threads + index) % len(cores)] for index in range(threads)})
