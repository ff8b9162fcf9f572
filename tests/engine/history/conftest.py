from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.history import History


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.duckdb"


@pytest.fixture
def history(path: Path) -> Iterator[History]:
    with History.open(path) as history:
        yield history
