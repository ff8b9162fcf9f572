"""System noise: what else the machine did during a sample, and whether the sample can be trusted.

Kernel counters are read before and after a sample, never during it; figures that the system does not report are NaN.
"""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import psutil

from engine.machine.cores import allowed_cores
from engine.machine.other_programs import programs, used_cores
from engine.samples import Flag

STEAL_SHARE = 0.02
"""Processor time taken by the hypervisor above which a sample is contended, as a share of all processor time."""
OTHER_SHARE = 0.05
"""Processor time of other processes above which a sample is contended, as a share of the allowed cores."""
THROTTLED_SHARE = 0.01
"""Time stopped by the control group's quota above which a sample is throttled, as a share of its seconds."""
MAJOR_FAULTS_PER_S = 10
"""Page faults per second that read from disk, above which a sample is cold."""

_NAN = float("nan")
_BUSY = ("user", "nice", "system", "irq", "softirq")
_SYSTEM = Path("/sys/devices/system/cpu")


class Counters(NamedTuple):
    """Kernel counters at one moment: seconds of processor time unless named otherwise; all but mhz increase."""

    at: float
    all_s: float
    busy_s: float
    steal_s: float
    pressure_s: float
    throttled_s: float
    throttles: float
    ours_s: float
    this_s: float
    workers_s: float
    major_faults: float
    voluntary: float
    involuntary: float
    mhz: float


class NoiseWatch:
    """Context manager around a sample; `pids` are the processes being measured.

    Processor time of this process, of all its descendants and of those it has waited for counts as own, the rest as
    that of others. After the block, values(), use(), programs() and flag() return the results.
    """

    def __init__(self, pids: Sequence[int] = ()) -> None:
        self._pids = tuple(pids)

    def __enter__(self) -> Self:
        self._programs_before = self._programs_after = programs()
        self._before = self._after = _read(self._pids)
        return self

    def __exit__(self, *_error: object) -> None:
        self._after = _read(self._pids)
        self._programs_after = programs()

    @property
    def seconds(self) -> float:
        """Seconds from the first reading to the last."""
        return self._after.at - self._before.at

    def values(self) -> dict[str, float]:
        """Return the figures of SYSTEM_NOISE."""
        return {
            "steal_share": self._gained("steal_s") / self._gained("all_s") if self._gained("all_s") else _NAN,
            "pressure_share": self._gained("pressure_s") / self.seconds,
            "throttled_s": self._gained("throttled_s"),
            "other_cores": max(0.0, self._gained("busy_s") - self._gained("ours_s")) / self.seconds,
            "major_faults": self._gained("major_faults"),
            "involuntary_switches": self._gained("involuntary"),
            "mhz": (self._before.mhz + self._after.mhz) / 2,
        }

    def use(self) -> dict[str, float]:
        """Return the METRICS for the processor use of the measured processes and of this one."""
        switches = self._gained("voluntary") + self._gained("involuntary")
        return {
            "cpu_cores": self._gained("workers_s") / self.seconds,
            "workbench_share": self._gained("this_s") / (self.seconds * len(allowed_cores())),
            "switches_per_s": switches / self.seconds,
        }

    def programs(self) -> dict[str, float]:
        """Return cores used by the largest other programs, by name, highest first; empty where unknown."""
        return used_cores(self._programs_before, self._programs_after, self.seconds, os.getpid())

    def flag(self) -> Flag:
        """Return the flag by flag_of; "throttled" also where a core was slowed for heat."""
        if self._gained("throttles") > 0:
            return "throttled"
        return flag_of(self.values(), self.seconds, len(allowed_cores()))

    def _gained(self, name: str) -> float:
        gained: float = getattr(self._after, name) - getattr(self._before, name)
        return gained


def flag_of(noise: Mapping[str, float], seconds: float, num_cores: int) -> Flag:
    """Return the flag of a sample of `seconds`: the first that applies of throttled, cold, contended, else clean.

    pressure_share is not used, since a configuration's own threads may wait for each other. An unknown figure sets no
    flag.
    """
    if noise["throttled_s"] > THROTTLED_SHARE * seconds:
        return "throttled"
    if noise["major_faults"] > MAJOR_FAULTS_PER_S * seconds:
        return "cold"
    is_crowded = noise["other_cores"] > OTHER_SHARE * num_cores
    return "contended" if is_crowded or noise["steal_share"] > STEAL_SHARE else "clean"


def _read(pids: Sequence[int]) -> Counters:
    processor = _processor_times()
    this = psutil.Process()
    switches = [_switches(pid) for pid in pids]
    return Counters(
        at=time.monotonic(),
        **processor,
        pressure_s=_known(_pressure_s),
        throttled_s=_known(_throttled_s),
        throttles=_throttles(),
        ours_s=_ours_s(this),
        this_s=time.process_time(),
        workers_s=sum(map(_process_s, pids)),
        major_faults=sum(map(_major_faults, pids)),
        voluntary=sum(each[0] for each in switches),
        involuntary=sum(each[1] for each in switches),
        mhz=_mhz(),
    )


def _processor_times() -> dict[str, float]:
    """Return the times of the cores allowed to this process (cpuN in /proc/stat); `all_s` includes idle time."""
    times = psutil.cpu_times(percpu=True)
    cores = [times[core] for core in allowed_cores() if core < len(times)]
    busy = sum(getattr(core, name, 0.0) for core in cores for name in _BUSY)
    steal = sum(getattr(core, "steal", _NAN) for core in cores)
    idle = sum(core.idle + getattr(core, "iowait", 0.0) for core in cores)
    return {"all_s": busy + idle + (0.0 if math.isnan(steal) else steal), "busy_s": busy, "steal_s": steal}


def _ours_s(this: psutil.Process) -> float:
    """Return processor seconds of this process, of those it has waited for, and of all its running descendants."""
    own = this.cpu_times()
    alive = sum(_process_s(child.pid) for child in this.children(recursive=True))
    return own.user + own.system + own.children_user + own.children_system + alive


def _process_s(pid: int) -> float:
    with suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system
    return 0.0


def _known(read: Callable[[], float]) -> float:
    """Return the result of `read`; NaN where this system has no such file."""
    try:
        return read()
    except (OSError, ValueError, KeyError, IndexError):
        return _NAN


def _pressure_s() -> float:
    """Return the seconds in which some task waited for a processor (PSI, kernel documentation accounting/psi)."""
    line = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    return float(line.rpartition("total=")[2]) / 1e6


def _throttled_s() -> float:
    """Return the seconds for which the quota of this process's control group, or of a parent, stopped its tasks."""
    seconds = _NAN
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _number, controllers, path = line.split(":", 2)
        base = Path("/sys/fs/cgroup", *([controllers] if controllers else []))
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError, KeyError):
                stat = dict(each.split() for each in (folder / "cpu.stat").read_text().splitlines())
                one = int(stat["throttled_usec"]) / 1e6 if not controllers else int(stat["throttled_time"]) / 1e9
                seconds = one if math.isnan(seconds) else max(seconds, one)
            if folder == base:
                break
    return seconds


def _throttles() -> float:
    """Return how often the cores were slowed for heat since the machine started; 0 where they do not count it."""
    total = 0
    for core in allowed_cores():
        with suppress(OSError, ValueError):
            total += int((_SYSTEM / f"cpu{core}/thermal_throttle/core_throttle_count").read_text())
    return total


def _major_faults(pid: int) -> float:
    """Return the major page faults of all threads (field 12 of /proc/PID/stat, proc(5))."""
    return _known(lambda: float(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[9]))


def _switches(pid: int) -> tuple[float, float]:
    """Return voluntary and involuntary context switches of a process's current threads."""
    voluntary = involuntary = _NAN
    with suppress(OSError):
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        voluntary = involuntary = 0.0
        for task in tasks:
            with suppress(OSError, ValueError):
                status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
                voluntary += int(status["voluntary_ctxt_switches"])
                involuntary += int(status["nonvoluntary_ctxt_switches"])
    return voluntary, involuntary


def _mhz() -> float:
    """Return the mean clock in MHz of the cores that this process may use."""
    with suppress(OSError, NotImplementedError, RuntimeError, AttributeError):
        clocks = psutil.cpu_freq(percpu=True)
        chosen = [clocks[core].current for core in allowed_cores() if core < len(clocks)]
        if chosen and min(chosen) > 0:
            return sum(chosen) / len(chosen)
    return _NAN
