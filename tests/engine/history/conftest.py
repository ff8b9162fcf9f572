from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.history import History
from engine.history.console import MOST_S, Console
from tests.engine.history.test_archive import archived, fill


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


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Valid archive."""
    with History.open(tmp_path_factory.mktemp("sound") / "history.duckdb") as history:
        fill(history)
        return archived(history)


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """History that is offered every damaged or oversized archive and accepts none."""
    with History.open(tmp_path_factory.mktemp("receiver") / "history.duckdb") as history:
        yield history
