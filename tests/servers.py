"""Servers for tests of external engines: our own API, llama.cpp's llama-server and llama_cpp.server."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from engine.backends.managed_programs import managed_missing
from engine.models.llama_programs import built_program
from tests.processes import free_port

STARTS_WITHIN_S = 120


@contextmanager
def our_server(model: Path, home: Path, *words: str, key: str = "") -> Iterator[str]:
    """`python -m engine serve`; gives its address. home: folder of its history; key: of its API, if any."""
    port = free_port()
    access = ["--api-key", key] if key else ["--no-key"]
    command = [sys.executable, "-m", "engine", "serve", "--model", str(model), "--port", str(port), *access, *words]
    with _running(command, port, {"LOGITBENCH_HOME": str(home)}) as address:
        yield address


@contextmanager
def llama_server(model: Path, *words: str) -> Iterator[str]:
    """llama-server as `make peers` builds it; gives its address. Skips the test where it is not built."""
    program, port = built_program("llama-server"), free_port()
    if not program.is_file():
        pytest.skip("llama-server is not built: run `make peers`")
    command = [str(program), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "--no-webui", *words]
    with _running(command, port, {}) as address:
        yield address


@contextmanager
def embedding_llama_cpp_server(model: Path) -> Iterator[str]:
    """llama_cpp.server of the installed package, which embeds; gives its address. Skips where packages are missing."""
    if missing := managed_missing("llama_cpp.server"):
        pytest.skip(missing)
    port = free_port()
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(model), "--embedding", "true"]
    with _running([*command, "--host", "127.0.0.1", "--port", str(port)], port, {}, "/v1/models") as address:
        yield address


@contextmanager
def _running(command: list[str], port: int, environment: dict[str, str], path: str = "/health") -> Iterator[str]:
    process = subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        ends_at = time.monotonic() + STARTS_WITHIN_S
        while not _is_ready(port, path):
            assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
            assert time.monotonic() < ends_at, f"{command[0]} does not answer"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def _is_ready(port: int, path: str) -> bool:
    """Return whether the server has loaded its model."""
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
