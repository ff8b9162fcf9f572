"""Fixtures of the pool tests: a pool to attack, and faults inside real workers."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine import Pool


@pytest.fixture(scope="module")
def attacked(story_model: Path) -> Iterator[Pool]:
    """Pool of one worker with two sequences."""
    with Pool(story_model, threads=1, parallel=2, n_ctx=16_384) as opened:
        yield opened


@pytest.fixture
def fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Function that makes every worker started from now on run these lines of Python first."""

    def set_fault(lines: str) -> None:
        (tmp_path / "sitecustomize.py").write_text("import sys\nif 'engine.pool.worker' in sys.orig_argv:\n" + lines)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    return set_fault
