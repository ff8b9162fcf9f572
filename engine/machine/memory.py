"""Available memory of this process: the machine's, or what its control groups leave."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes that can be allocated without swapping, counting clean page cache as free.

    The minimum of what the system has and what is left of each memory limit (control groups, versions 1 and 2) above
    this process. `root` is the folder that contains /proc and /sys.
    """
    return max(0, min([psutil.virtual_memory().available, *(left for _limit, left in _groups(root))]))


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the lowest memory limit, in bytes, of the control groups above this process; None where none is set."""
    return min((limit for limit, _left in _groups(root)), default=None)


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit and what is left of it, in bytes, for each group that has one."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _number, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _limits(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            yield from _limits(base, path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _limits(base: Path, path: str, limit: str, usage: str, reclaimable: str) -> Iterator[tuple[int, int]]:
    """Yield as `_groups`, from the process's own group up to the root; in a container the own path may not exist."""
    group = base / path.lstrip("/")
    for folder in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):
            total = int((folder / limit).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            yield total, total - int((folder / usage).read_text()) + int(stat.get(reclaimable, 0))
        if folder == base:
            return
