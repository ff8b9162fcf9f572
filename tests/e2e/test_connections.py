"""Connections that send no complete request, against the real server: they cost it nothing that others need."""

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import psutil
import pytest
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from tests.e2e.conftest import Server, running
from tests.e2e.few_files_server import NUM_FILES
from tests.e2e.test_gate import CLIENT, STRANGER, is_root, tells_users
from tests.e2e.test_sessions import visit
from tests.waiting import until

pytestmark = pytest.mark.slow

NUM_HELD = 400
HEADS = (b"", b"G", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", b"POST / HTTP/1.1\r\nHost: ")
LOG_BYTES = 64 << 10
# Another user opens connections, says so, and then that the server has closed them all.
HOLDER = """
import contextlib, encodings.idna, os, socket, sys
os.setuid(int(sys.argv[1]))
held = []
for number in range(int(sys.argv[3])):
    client = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    with contextlib.suppress(OSError):
        client.sendall(b"GET / HTTP/1.1\\r\\nX: ")
    held.append(client)
print("held", flush=True)
for client in held:
    with contextlib.suppress(ConnectionError):
        assert client.recv(1) == b""
print("closed")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that may open few files."""
    with running(tmp_path_factory.mktemp("few"), program="tests.e2e.few_files_server") as server:
        yield server


def half_open(server: Server, head: bytes) -> socket.socket:
    """A connection with the beginning of a request; the server may already have closed it."""
    client = socket.create_connection(("127.0.0.1", server.port))
    with suppress(OSError):
        client.sendall(head)
    return client


def is_closed(client: socket.socket) -> bool:
    """Whether the server closed it."""
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def status(server: Server, path: str) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status


def answers(server: Server) -> None:
    """The health check, a page's HTML, a page's script and a file are there for its own user."""
    assert [status(server, path) for path in ("/_stcore/health", "/", "/history")] == [200] * 3
    visit(server, "history")
    assert psutil.Process(server.process.pid).num_fds() < NUM_FILES


def test_the_server_has_few_files(server: Server) -> None:
    assert psutil.Process(server.process.pid).rlimit(psutil.RLIMIT_NOFILE) == (NUM_FILES, NUM_FILES)


def test_half_open_connections_end_and_leave_room(server: Server) -> None:
    size = server.log.stat().st_size
    stream = f"ws://127.0.0.1:{server.port}/_stcore/stream"
    with (
        ExitStack() as ends,
        connect(stream, origin=Origin(server.url), subprotocols=[Subprotocol("streamlit")], max_size=None) as page,
    ):
        held = [ends.enter_context(half_open(server, HEADS[number % len(HEADS)])) for number in range(NUM_HELD)]
        answers(server)
        until(lambda: all(is_closed(client) for client in held), "the server keeps a connection without a request")
        answers(server)
        assert page.ping().wait(60), "a web socket that says nothing is not a connection without a request"
    assert server.log.stat().st_size - size < LOG_BYTES, server.log.read_text()[-4000:]


@tells_users
@is_root
def test_another_users_connections_take_nothing_from_ours(server: Server) -> None:
    size = server.log.stat().st_size
    command = [sys.executable, "-c", HOLDER, str(STRANGER), str(server.port), str(NUM_HELD)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin and holder.stdout
        assert holder.stdout.readline() == "held\n"
        answers(server)
        asked = subprocess.run(
            [sys.executable, "-c", CLIENT, str(STRANGER), str(server.port)],
            input='[["GET", "/_stcore/health", {}], ["GET", "/", {}]]', capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert [code for code, _ in json.loads(asked.stdout)] == [200, 403]
        assert holder.communicate(timeout=60)[0] == "closed\n"
    assert server.log.stat().st_size - size < LOG_BYTES, server.log.read_text()[-4000:]
