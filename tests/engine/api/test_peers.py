"""Owners of connections, as reported by the kernel that runs the tests."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from engine.api import peers

pytestmark = pytest.mark.skipif(not peers.can_identify(), reason="this system does not tell whose a connection is")
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
STRANGER = 12345
# Connects as another user, then does what each line of its standard input says.
CLIENT = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
client = socket.socket(socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET)
client.connect((sys.argv[2], int(sys.argv[3])))
print("connected", flush=True)
for line in sys.stdin:
    client.shutdown(socket.SHUT_WR) if line == "half\\n" else client.close()
    print(line, end="", flush=True)
"""


@contextmanager
def connected(server: socket.socket, client: socket.socket) -> Iterator[tuple[peers.Address, peers.Address]]:
    accepted, address = server.accept()
    with accepted, client:
        yield address[:2], accepted.getsockname()[:2]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_our_own_connection_is_ours(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with (
        socket.create_server((address, 0), family=family) as server,
        connected(server, socket.create_connection(server.getsockname()[:2])) as (client, end),
    ):
        assert peers.uid_of(client, end) == os.geteuid()
        assert peers.uid_of((client[0], 1), end) is None
        assert peers.uid_of(client, (end[0], 1)) is None


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
@pytest.mark.parametrize("is_dual", [True, False])
def test_ipv4_in_ipv6_at_either_end(family: socket.AddressFamily, *, is_dual: bool) -> None:
    server = (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        if is_dual
        else socket.create_server(("127.0.0.1", 0))
    )
    client = socket.socket(family)
    with server:
        client.connect(("127.0.0.1" if family == socket.AF_INET else "::ffff:127.0.0.1", server.getsockname()[1]))
        with connected(server, client) as (address, end):
            assert peers.uid_of(address, end) == os.geteuid()


@pytest.mark.parametrize(
    "client", [("203.0.113.9", 4711), ("testclient", 1), ("127.0.0.1", 99999), ("", -1), ("::g", 1)]
)
def test_another_machine_or_no_address_is_nobody(client: peers.Address) -> None:
    assert peers.uid_of(client, ("127.0.0.1", 8501)) is None


def test_a_socket_that_listens_is_no_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert peers.uid_of(server.getsockname(), ("127.0.0.1", 1)) is None


@is_root
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_another_user_is_seen_until_the_socket_is_closed(address: str) -> None:
    """The kernel reports root as the owner of a socket without a file; it must not count as root's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        command = [sys.executable, "-c", CLIENT, str(STRANGER), address, str(server.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stranger:
            assert stranger.stdin and stranger.stdout
            assert stranger.stdout.readline() == "connected\n"
            accepted, client = server.accept()
            with accepted:
                end = accepted.getsockname()[:2]
                assert peers.uid_of(client[:2], end) == STRANGER
                for word, uid in (("half", STRANGER), ("close", None)):
                    print(word, file=stranger.stdin, flush=True)
                    stranger.stdout.readline()
                    assert peers.uid_of(client[:2], end) == uid
                stranger.stdin.close()
