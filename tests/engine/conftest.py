"""Fixture of the engine's tests: faults inside real workers."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Function that makes every worker started from now on run these lines of Python first."""

    def set_fault(lines: str) -> None:
        (tmp_path / "sitecustomize.py").write_text("import sys\nif 'engine.pool.worker' in sys.orig_argv:\n" + lines)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    return set_fault
