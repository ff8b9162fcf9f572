"""`serve` on the command line: the lines that it prints are enough for a program to use it."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.processes import free_port

pytestmark = pytest.mark.slow

ENDS_WITHIN_S = 60.0


@contextmanager
def serving(home: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "engine", "serve", *words]
    environment = {**os.environ, "LOGITBENCH_HOME": str(home)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_of(process: "subprocess.Popen[str]") -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(3)]


def test_a_program_needs_no_more_than_the_lines_that_are_printed(tmp_path: Path) -> None:
    with serving(tmp_path, "--port", str(free_port()), "--n-ctx", "256", "--parallel", "2") as process:
        line, in_python, in_curl = lines_of(process)
        printed = subprocess.run(
            ["bash", "-c", f"{line}\n{sys.executable} -c 'import os; print(*map(os.getenv, os.sys.argv[1:]))' "
             "OPENAI_BASE_URL OPENAI_API_KEY"],
            check=True, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        address, key = printed.stdout.split()
        compile(in_python, "printed", "exec")
        assert all(part in in_python and part in in_curl for part in (address, key))
        request = urllib.request.Request(f"{address}/models", headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            model = json.load(answer)["data"][0]
        assert (model["id"], model["max_model_len"]) == ("story", 256)
        assert (tmp_path / "api-key").read_text().strip() == key
        assert (tmp_path / "api-key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_at_a_signal_while_it_streams(tmp_path: Path, number: signal.Signals) -> None:
    port = free_port()
    with serving(tmp_path, "--port", str(port), "--no-key") as process:
        lines_of(process)
        children = psutil.Process(process.pid).children(recursive=True)
        body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "n": 8, "stream": True}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.readline().startswith(b"data: ")
            process.send_signal(number)
            assert process.wait(ENDS_WITHIN_S) in (128 + number, -number)
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
        assert not psutil.wait_procs(children, ENDS_WITHIN_S)[1]


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving(tmp_path, "--port", str(port)) as process:
            _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert f"Port {port} cannot be used (Address already in use)" in errors and "Traceback" not in errors


def test_a_history_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "history.duckdb").mkdir()
    with serving(tmp_path, "--port", str(free_port())) as process:
        lines_of(process)
        assert process.stderr is not None
        said = process.stderr.readline()
    assert said.startswith("Calls are not stored at present: ") and "history.duckdb" in said


@pytest.mark.parametrize(
    "words",
    [
        ["--model", "nowhere.gguf"],
        ["--port", "70000"],
        ["--port", "x"],
        ["--parallel", "0"],
        ["--api-key", os.fsdecode(b"\xff")],
        ["--api-key", "a\nb"],
        ["--api-key", "k" * 513],
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, words: list[str]) -> None:
    with serving(tmp_path, *words) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "Traceback" not in errors and ("API key" if words[0] == "--api-key" else words[1]) in errors
