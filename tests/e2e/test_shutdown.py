"""The end of the app: within seconds of a signal, whatever it is busy with, and nothing acknowledged is lost."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from websockets.sync.client import connect
from websockets.typing import Origin

from engine.history import History
from pages.parts import exports, live
from tests.conftest import lend_exports
from tests.e2e.conftest import ROOT, Server, running
from tests.waiting import until

pytestmark = pytest.mark.slow

ENDS_WITHIN_S = 8.0  # five seconds are promised; other tests run beside this one
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def busy(
    home: Path, work: str, monkeypatch: pytest.MonkeyPatch, model: Path | None = None
) -> Iterator[tuple[Server, str]]:
    """A server that does this work, and what it said of it."""
    monkeypatch.setenv("BUSY_WITH", work)
    with running(home, model, "tests.e2e.busy_server") as server:
        until((home / "busy").exists, "it never began")
        until(lambda: (home / "acknowledged").stat().st_size, "nothing was kept")
        yield server, (home / "busy").read_text()


def ends(server: Server, number: signal.Signals) -> None:
    """The signal ends the server in time, and its children with it; what it had acknowledged is kept."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    assert children
    try:
        server.stop(number, ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        server.process.send_signal(signal.SIGABRT)
        pytest.fail(f"It did not end. Its log:\n{server.log.read_text()}")
    _, alive = psutil.wait_procs(children, ENDS_WITHIN_S)
    assert not alive
    assert "leaked" not in server.log.read_text()
    acknowledged = (server.home / "acknowledged").read_text().split()
    with History.open(server.home / "history.duckdb") as history:
        assert all(history.trial(id) is not None for id in acknowledged)
    assert not (server.home / "history.duckdb.console").exists()


def reads(server: Server) -> socket.socket:
    """Ask for everything as a download, and read the beginning of it."""
    reader = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
    reader.sendall(f"GET {exports.PATH} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
    assert reader.recv(1000).startswith(b"HTTP/1.1 200")
    return reader


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("work", ["sql", "arrival", "embedding"])
def test_it_ends_while_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exported: Path, work: str, number: signal.Signals
) -> None:
    lend_exports(tmp_path, exported)
    with busy(tmp_path, work, monkeypatch) as (server, _):
        ends(server, number)


@pytest.mark.parametrize("number", SIGNALS)
def test_it_ends_while_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_model: Path, number: signal.Signals
) -> None:
    with busy(tmp_path, "benchmark", monkeypatch, slow_model) as (server, _):
        ends(server, number)


@pytest.mark.parametrize("number", SIGNALS)
def test_it_ends_while_tokens_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_model: Path, number: signal.Signals
) -> None:
    with busy(tmp_path, "stream", monkeypatch, slow_model) as (server, trial):
        address = f"ws://127.0.0.1:{server.port}{live.SOCKET_PATH}"
        with connect(address, origin=Origin(server.url)) as page:
            page.send(json.dumps({"jobs": {trial: 0}}))
            while "steps" not in json.loads(page.recv(60)):
                pass
            ends(server, number)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("is_aborted", [False, True], ids=["read slowly", "aborted"])
def test_it_ends_while_downloads_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_aborted: bool, number: signal.Signals
) -> None:
    with busy(tmp_path, "download", monkeypatch) as (server, _), ExitStack() as stack:
        readers = [stack.enter_context(reads(server)) for _ in range(3)]
        if is_aborted:
            for reader in readers:
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                reader.close()
        ends(server, number)


def test_an_aborted_download_ends_its_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with busy(tmp_path, "download", monkeypatch) as (server, _):
        threads = psutil.Process(server.process.pid).num_threads()
        for _ in range(10):
            reads(server).close()
        until(lambda: psutil.Process(server.process.pid).num_threads() <= threads + 5, "they are still read")


def test_a_second_signal_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with busy(tmp_path, "download", monkeypatch) as (server, _), reads(server):
        server.process.send_signal(signal.SIGINT)
        server.process.send_signal(signal.SIGINT)
        assert server.stop(signal.SIGINT, ENDS_WITHIN_S) != 0


COMMANDS = {
    "generate": ["generate", "--prompt", "Once", "--max-tokens", "400", "--logit-bias", "2=-inf"],
    "bench": ["bench", "--layout", "1x1", "--parallel", "1", "--rounds", "500"],
    "embed": ["embed", "texts.txt", "--backend", "torch"],
    "history": ["history", "sql", "SELECT pg_sleep(1000)"],
    "models": ["models", "synth", "large.gguf", "--shape", "llama-2-7b"],
}


def size(path: Path) -> int:
    """Bytes of a file, 0 for one that has been renamed meanwhile."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: signal.Signals) -> None:
    monkeypatch.setenv("LOGITBENCH_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "texts.txt").write_text("\n".join(f"text {number}" for number in range(20_000)))
    command = [sys.executable, "-m", "engine", *COMMANDS[name]]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            watched = psutil.Process(process.pid)
            if name == "models":
                until(lambda: max(map(size, tmp_path.iterdir())) > 64 << 20, "it never wrote")
            else:
                until(watched.children, "it never started a child")
            children = watched.children(recursive=True)
            process.send_signal(number)
            _, errors = process.communicate(timeout=ENDS_WITHIN_S)
            assert process.returncode in (130, -number)
            assert b"Traceback" not in errors and b"Timeout (" not in errors, errors.decode()
            assert not psutil.wait_procs(children, ENDS_WITHIN_S)[1]
        finally:
            process.kill()
