from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from pathlib import Path

import pytest

from engine.history import History
from engine.history.console import MOST_S, Console
from tests.engine.history.run_maker import cells_with, keep_run, make_samples
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


@pytest.fixture
def three(history: History) -> dict[str, str]:
    """Ids of three runs by letter; the runs differ in every field of a filter."""
    day = datetime.combine(date(2026, 11, 10), time(12)).astimezone()
    machines = [{"hash": f"{letter}0", "cpu": f"CPU {letter}"} for letter in "abc"]
    return {
        letter: keep_run(
            history,
            name=f"run {letter} of Ärger",
            created_at=day + timedelta(days=number),
            question=("speed", "users", "python")[number],
            origin=("measured", "llama-bench", "measured")[number],
            status=("done", "stopped", "done")[number],
            machine=machines[number],
            outcome={"sentence": f"Keep 100 % of {letter}_{number}."},
            cells=cells_with(model=f"/m/{letter}-{('Q8_0', 'q4_k_m', 'F16')[number]}.gguf", n_ctx=512 << number),
            samples=make_samples(4, 1),
        )
        for number, letter in enumerate("abc")
    }


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    return tmp_path / "inbox"
