"""Resource limits of a server: as many open files as the system grants, up to a bound, and never fewer."""

import resource
import subprocess
import sys

import pytest

from engine.process.limits import OPEN_FILES

PROGRAM = """
import resource, subprocess, sys
from engine.process.limits import raise_open_files

hard = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), hard))
limit = raise_open_files()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (limit, hard)
child = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
assert subprocess.check_output([sys.executable, "-c", child], text=True).split() == [str(limit), str(hard)]
print(limit)
"""
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
MOST = OPEN_FILES if HARD < 0 else min(HARD, OPEN_FILES)


@pytest.mark.parametrize(
    ("soft", "hard", "expected"), [(64, 256, 256), (256, 256, 256), (64, HARD, MOST), (MOST, HARD, MOST)]
)
def test_the_soft_limit_of_open_files_becomes_the_hard_one(soft: int, hard: int, expected: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(soft), str(hard)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == f"{expected}\n", done.stderr
