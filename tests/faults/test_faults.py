"""Sixty faults, drawn anew in each run, against a live workbench: none of them may leave a mark."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COUNT = 60


@pytest.mark.alone
def test_drawn_faults_leave_no_mark() -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    words = [sys.executable, "-m", "tests.faults", "--seed", str(seed), "--count", str(COUNT)]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert f"seed {seed}: {COUNT} faults" in done.stdout
