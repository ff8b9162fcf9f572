"""Other programs: which of them use the processors, by name alone."""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

LEAST_CORES = 0.05
"""Programs that use less are not named."""
MOST_NAMED = 3
_MOST_READ = 5_000
_PROC = Path("/proc")


class Program(NamedTuple):
    """One process: its name without arguments or folder, the process that started it, and its processor seconds."""

    name: str
    parent: int
    seconds: float


def programs(root: Path = _PROC) -> dict[int, Program]:
    """Processes by id, from /proc/PID/stat (proc(5)); none where the system has no such files."""
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    found = {}
    with suppress(OSError):
        for pid in islice((int(entry.name) for entry in os.scandir(root) if entry.name.isdigit()), _MOST_READ):
            with suppress(OSError, ValueError, IndexError):
                before, _, after = (root / str(pid) / "stat").read_text(errors="replace").rpartition(")")
                fields = after.split()
                seconds = (int(fields[11]) + int(fields[12])) / ticks_per_s
                found[pid] = Program(_readable(before.partition("(")[2]), int(fields[1]), seconds)
    return found


def _readable(name: str) -> str:
    """The name with nothing in it that steers a terminal: a program may call itself what it likes."""
    return "".join(character if character.isprintable() else "?" for character in name)


def used_cores(
    before: Mapping[int, Program], after: Mapping[int, Program], seconds: float, ours: int
) -> dict[str, float]:
    """Cores that programs used between two readings `seconds` apart, most first, MOST_NAMED of them at most.

    ours: a process; it and all that descend from it are left out.
    """
    own = _family(after, ours)
    used: dict[str, float] = defaultdict(float)
    for pid, program in after.items():
        if pid not in own:
            earlier = before.get(pid)
            is_same = earlier is not None and earlier.seconds <= program.seconds
            used[program.name] += program.seconds - (earlier.seconds if earlier is not None and is_same else 0.0)
    return largest((name, spent / seconds) for name, spent in used.items())


def largest(cores: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The programs to name, most cores first."""
    enough = sorted((one for one in cores if one[1] >= LEAST_CORES), key=lambda one: -one[1])
    return dict(enough[:MOST_NAMED])


def _family(known: Mapping[int, Program], root: int) -> set[int]:
    """A process with all that descend from it."""
    found, new = {root}, {root}
    while new:
        new = {pid for pid, program in known.items() if program.parent in new} - found
        found |= new
    return found
