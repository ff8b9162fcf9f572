"""Other programs: measures which of them use the processors, identified by name only."""

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
    """One process: its name without arguments or folder, its parent's id, and its processor seconds."""

    name: str
    parent: int
    seconds: float


def programs(root: Path = _PROC) -> dict[int, Program]:
    """Return the processes by id, from /proc/PID/stat (proc(5)); empty where the system has no such files."""
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
    """Return the name without terminal control characters: a program may choose any name."""
    return "".join(character if character.isprintable() else "?" for character in name)


def used_cores(
    before: Mapping[int, Program], after: Mapping[int, Program], seconds: float, ours: int
) -> dict[str, float]:
    """Return cores used by programs between two readings `seconds` apart, highest first, at most MOST_NAMED of them.

    ours: id of a process that is left out together with all its descendants.
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
    """Return the programs to name, highest use first."""
    enough = sorted((one for one in cores if one[1] >= LEAST_CORES), key=lambda one: -one[1])
    return dict(enough[:MOST_NAMED])


def _family(known: Mapping[int, Program], root: int) -> set[int]:
    """Return the ids of a process and all its descendants."""
    found, new = {root}, {root}
    while new:
        new = {pid for pid, program in known.items() if program.parent in new} - found
        found |= new
    return found
