"""Slow and absent readers: connections that are opened and not read, or not written to, while the checks run."""

import json
import random
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from websockets.exceptions import WebSocketException

from pages.parts.exports import MOST_AT_ONCE
from tests.faults import tokens
from tests.faults.failure import Failure
from tests.faults.page import Page
from tests.faults.world import LONG, World


def slow_reader(world: World, draw: random.Random) -> None:
    """Somebody asks for much and takes little or nothing of it; others must not notice."""
    name = draw.choice(sorted(READERS))
    world.doing = name
    READERS[name](world, draw)


def _silent_connections(world: World, draw: random.Random) -> None:
    """Connections over which nothing is ever asked, or half a request."""
    for _ in range(draw.randint(20, 120)):
        connection = socket.create_connection(world.app.address, timeout=5)
        connection.sendall(draw.choice((b"", b"G", b"GET / HTTP/1.1\r\nHost: 127.0.0.1", b"POST / HTTP/1.1\r\n")))
        world.hold(connection.close)


def _unread_download(world: World, draw: random.Random) -> None:
    """The history is asked for and taken byte by byte, or not at all; some go away in the middle, and one download is
    left to the checks, as a fifth at once is refused."""
    link, num_held = world.history_link(), 0
    for _ in range(draw.randint(1, 6)):
        connection = socket.create_connection(world.app.address, timeout=5)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(f"GET {link} HTTP/1.1\r\nHost: {urlsplit(world.app.url).netloc}\r\n\r\n".encode())
        if draw.random() < 0.5:
            connection.recv(draw.choice((1, 200)))
        if draw.random() < 0.4 or num_held == MOST_AT_ONCE - 1:
            connection.close()
        else:
            num_held += 1
            world.hold(connection.close)


def _unread_tokens(world: World, draw: random.Random) -> None:
    """Token sockets that follow a stream and never read."""
    trial = world.begin_trial(draw, LONG)
    for _ in range(draw.randint(1, 8)):
        follower = tokens.open_socket(world.app.url)
        tokens.ask(follower, [trial])
        world.hold(follower.socket.close)
    world.tab().rerun()


def _unread_page(world: World, draw: random.Random) -> None:
    """A tab that asks for its page again and again and never reads what comes."""
    page = Page(world.app.url, draw.choice(("", "history", "benchmark")))
    page.ask_without_reading(draw.randint(5, 40))
    world.hold(page.close)


def _unfinished_upload(world: World, draw: random.Random) -> None:
    """A large file is announced and its rest never comes."""
    for _ in range(draw.randint(1, 10)):
        connection = socket.create_connection(world.app.address, timeout=5)
        head = (
            f"PUT /_stcore/upload_file/{draw.randbytes(8).hex()}/{draw.randbytes(8).hex()} HTTP/1.1\r\n"
            f"Host: {urlsplit(world.app.url).netloc}\r\nOrigin: {world.app.url}\r\nContent-Length: 150000000\r\n\r\n"
        )
        connection.sendall(head.encode() + draw.randbytes(2000))
        world.hold(connection.close)


def _greedy_followers(world: World, draw: random.Random) -> None:
    """A token socket that asks for everything again with each message, and goes away in the middle of an answer."""
    trials = draw.sample(sorted(world.ledger.trials), min(len(world.ledger.trials), 64))
    try:
        with tokens.open_socket(world.app.url) as follower:
            for _ in range(draw.randint(5, 60)):
                follower.send(json.dumps({"jobs": dict.fromkeys(trials, draw.randint(0, 4))}))
            follower.recv(timeout=5)
    except (OSError, WebSocketException) as error:
        raise Failure(f"the token socket broke: {error!r}") from error


READERS: dict[str, Callable[[World, random.Random], None]] = {
    "silent connections": _silent_connections,
    "an unread download": _unread_download,
    "unread tokens": _unread_tokens,
    "an unread page": _unread_page,
    "an unfinished upload": _unfinished_upload,
    "greedy followers": _greedy_followers,
}
