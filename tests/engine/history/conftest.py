from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.history import History
from engine.history.console import MOST_S, Console


@pytest.fixture(autouse=True)
def patient_console(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries without a time limit of their own have a minute: other tests run beside this one."""
    defaults = Console.run.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout_s", MOST_S)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.duckdb"


@pytest.fixture
def history(path: Path) -> Iterator[History]:
    with History.open(path) as history:
        yield history
