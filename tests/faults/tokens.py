"""The token socket as a page uses it: follows a trial to its end."""

import json
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from tests.faults.failure import MOST_S, Failure

PATH = "/logitbench/live"


def open_socket(url: str, *, origin: str | None = None, most_s: float = MOST_S) -> ClientConnection:
    """A connection to the token socket, from this server's own page unless another origin is given."""
    address = f"ws://{urlsplit(url).netloc}{PATH}"
    return connect(address, origin=Origin(origin or url), open_timeout=most_s, close_timeout=1)


def ask(socket: ClientConnection, trials: Iterable[str]) -> None:
    """Ask for all tokens of these trials."""
    socket.send(json.dumps({"jobs": dict.fromkeys(trials, 0)}))


def follow(url: str, trial: str, *, most_s: float = MOST_S) -> dict[str, Any]:
    """How a trial ended, once it did; raises Failure where nothing comes for so long."""
    try:
        with open_socket(url, most_s=most_s) as socket:
            ask(socket, [trial])
            end = time.monotonic() + most_s
            while True:
                message = json.loads(socket.recv(timeout=max(end - time.monotonic(), 0.001)))
                if "steps" in message:
                    end = time.monotonic() + most_s
                if "end" in message:
                    ending: dict[str, Any] = message["end"]
                    return ending
    except TimeoutError:
        raise Failure(f"no token of trial {trial} came for {most_s:g} s") from None
    except (OSError, WebSocketException) as error:
        raise Failure(f"the token socket broke: {error!r}") from error
