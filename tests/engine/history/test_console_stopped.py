"""Console child that is stopped (SIGSTOP): it is replaced, and neither writing nor the next query waits for it."""

import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from engine.errors import HistoryError, LimitExceeded
from engine.history import History, console, write_snapshot
from engine.history.console import Result
from engine.history.console_sql import Copy
from engine.process.program import Program
from tests.engine.history.run_maker import make_run
from tests.engine.history.trial_maker import make_trial
from tests.waiting import until

pytestmark = pytest.mark.slow

WITHIN_S = 180.0
MIB = 1 << 20


def child_of(history: History) -> psutil.Process:
    """Return the console's child, once it is there."""
    service = history.console._service
    assert service is not None
    return psutil.Process(service._programs[0].pid)


@pytest.fixture
def history(path: Path) -> Iterator[History]:
    """A history of 50 MiB, so that copying it takes a while."""
    with History.open(path) as history:
        history.file.write(lambda cursor: cursor.execute("CREATE TABLE filler (content BLOB)")).result()
        for _ in range(50):
            history.file.write(
                lambda cursor: cursor.execute("INSERT INTO filler VALUES (?)", [os.urandom(MIB)])
            ).result()
        history.console.run("SELECT 1")
        yield history


def test_a_child_that_was_stopped_is_replaced(history: History, tmp_path: Path) -> None:
    stopped = child_of(history)
    stopped.suspend()
    assert history.console.run("SELECT 1 AS n").num_rows == 1
    assert not stopped.is_running()
    history.record(make_trial()).result(WITHIN_S)
    child_of(history).suspend()
    assert write_snapshot(history, tmp_path / "snapshot.duckdb") > 50 * MIB


def wait_a_while(asked: "Future[Result]", draw: random.Random) -> None:
    """Return at any moment of the copy or of the query."""
    until(lambda: asked.done() or draw.random() < 0.05)


@pytest.mark.parametrize("seed", range(3))
def test_writing_goes_on_whenever_the_child_is_stopped(history: History, seed: int) -> None:
    draw = random.Random(seed)
    with ThreadPoolExecutor(1) as asking:
        for num_runs in range(1, 3):
            history.runs.keep(make_run(3))  # so that the next query copies
            asked = asking.submit(history.console.run, "FROM runs", timeout_s=60)
            wait_a_while(asked, draw)
            with suppress(psutil.NoSuchProcess):
                child_of(history).suspend()
            history.record(make_trial()).result(WITHIN_S)
            try:
                assert asked.result(WITHIN_S).num_rows == num_runs
            except LimitExceeded as error:  # stopped during the query itself
                assert "was suspended" in str(error) or "took longer" in str(error)
            assert history.console.run("FROM runs").num_rows == num_runs


def test_a_copy_that_cannot_be_made_says_why(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    history.runs.keep(make_run(3))
    ask = Program.ask

    def ask_stopped(program: Program, request: Copy, timeout_s: float) -> object:
        psutil.Process(program.pid).suspend()
        return ask(program, request, timeout_s)

    with monkeypatch.context() as patch:
        patch.setattr(console, "_STEP_S", 0.2)
        patch.setattr(Program, "ask", ask_stopped)
        with pytest.raises(HistoryError, match=r"could not be copied.*took longer than 0.2 s.*second process"):
            history.console.run("FROM runs")
    assert history.console.run("FROM runs").num_rows == 1


def test_a_copy_that_waits_for_writes_says_so(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()
    written = history.file.write(lambda _cursor: is_over.wait(WITHIN_S))
    with monkeypatch.context() as patch:
        patch.setattr(console, "_WAIT_S", 0.2)
        with pytest.raises(HistoryError, match=r"written to for more than 0.2 s"):
            history.console.copy_to(history.path.with_name("copy.duckdb"))
    is_over.set()
    assert written.result(WITHIN_S)
    assert history.console.run("SELECT 1").num_rows == 1


def test_advice_about_the_query_is_not_given_where_the_child_was_busy(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> None:
        raise LimitExceeded("the process was busy for 5 s: try again")

    with pytest.raises(LimitExceeded, match="Narrow it"):
        history.console.run("SELECT count(*) FROM range(10000000000000)", timeout_s=0.5)
    service = history.console._service
    assert service is not None
    monkeypatch.setattr(Program, "ask", busy)
    with pytest.raises(LimitExceeded, match=r"try again\.$"):
        console._ask(service._programs[0], None, 1.0)  # type: ignore[arg-type]
