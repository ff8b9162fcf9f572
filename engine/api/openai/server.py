"""API server: the OpenAI-compatible API on a port of 127.0.0.1, in a thread and event loop of its own."""

import asyncio
import os
import re
import shlex
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn

from engine.api import connections
from engine.api.access_token import AccessToken
from engine.api.openai.app import make_app
from engine.api.openai.traffic import Traffic
from engine.errors import ConfigError
from engine.process.limits import raise_open_files
from engine.workbench.workbench import Workbench

PORT = 8080
PAGES = "http://127.0.0.1:8501/"
"""Address of the pages, by default."""
KEY_FILE = "api-key"
KEEP_ALIVE_S = 75
CLOSES_S = 1.0
LONGEST_KEY = 512
_KEY = re.compile(r"[!-~]([ -~]*[!-~])?")
_START_POLL_S = 0.005
STALLED_MS = 60_000
"""Time after which a connection ends whose client takes nothing of what is sent to it."""


class ApiServer:
    """Server of one workbench's model; `traffic` has its latest calls. Any thread may call it.

    port: the port while it runs, else None. pages: returns the address of the pages, which responses link to.
    """

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._lock = threading.Lock()
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.traffic = Traffic()
        self.port: int | None = None
        self.key = ""
        self.pages: Callable[[], str] = lambda: PAGES

    def start(self, port: int = PORT, key: str | None = None) -> None:
        """Listen on `port` (0: any free one), and return once it answers; has no effect while it runs.

        key: None for the one in the home folder, empty for none. Raises ConfigError where the port is taken, the key
        cannot be one, or the server does not start.
        """
        with self._lock:
            if self.port is not None:
                return
            self.key = kept_key(self._bench.settings.home) if key is None else checked_key(key)
            listening = _listening(port)
            app = make_app(self._bench, self.traffic, key=self.key, pages=lambda: self.pages())
            config = uvicorn.Config(
                app,
                lifespan="on",
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                ws="none",
            )
            server, port = uvicorn.Server(config), listening.getsockname()[1]
            thread = threading.Thread(target=_serve, args=(server, listening), name="logitbench-api", daemon=True)
            thread.start()
            while not server.started:
                if not thread.is_alive():
                    raise ConfigError("The API did not start; the log has the reason.")
                time.sleep(_START_POLL_S)
            self._server, self._thread, self.port = server, thread, port

    def stop(self) -> None:
        """Stop listening and end the calls in progress with what they have, within seconds. Safe to call twice."""
        with self._lock:
            server, thread = self._server, self._thread
            self._server, self._thread, self.port = None, None, None
        if server is not None and thread is not None:
            self.traffic.stop_running()
            server.should_exit = True
            thread.join(CLOSES_S)
            server.force_exit = True  # a client that reads slowly keeps its stream open
            thread.join(CLOSES_S)

    @property
    def address(self) -> str:
        """Base address of the API for clients; with the port that it has by default while it does not run."""
        return f"http://127.0.0.1:{self.port or PORT}/v1"

    @property
    def lines(self) -> tuple[str, str, str]:
        """Three ways to point a program at this server: environment variables, OpenAI's Python client, curl."""
        address, given = self.address, self.key or "none"
        return (
            f"export OPENAI_BASE_URL={address} OPENAI_API_KEY={shlex.quote(given)}",
            f"from openai import OpenAI; client = OpenAI(base_url={address!r}, api_key={given!r})",
            f"curl {address}/models" + (f" -H {shlex.quote(f'Authorization: Bearer {self.key}')}" if self.key else ""),
        )


_servers: "weakref.WeakKeyDictionary[Workbench, ApiServer]" = weakref.WeakKeyDictionary()
_making = threading.Lock()


def server_of(bench: Workbench) -> ApiServer:
    """Return the one server of a workbench, which may not run."""
    with _making:
        if bench not in _servers:
            _servers[bench] = ApiServer(bench)
        return _servers[bench]


def kept_key(home: Path) -> str:
    """Return the key in the home folder, made at the first use. Raises ConfigError where that is not possible."""
    token = AccessToken(home, KEY_FILE)
    try:
        return token.text()
    except OSError as error:
        raise ConfigError(f"The API key in {token.path} cannot be read or written ({error}).") from error


def checked_key(key: str) -> str:
    """Return a key that a person gives, which must fit into a header. Raises ConfigError."""
    if key and not (len(key) <= LONGEST_KEY and _KEY.fullmatch(key)):
        raise ConfigError(f"The API key must be at most {LONGEST_KEY} printable ASCII characters: it is a header.")
    return key


def _serve(server: uvicorn.Server, listening: socket.socket) -> None:
    async def serve() -> None:
        quota = connections.OURS._replace(idle_s=KEEP_ALIVE_S)
        connections.limit(asyncio.get_running_loop(), access="", num_files=raise_open_files(), ours=quota)
        await server.serve(sockets=[listening])

    with listening, suppress(SystemExit):  # raised where it does not start, with the reason in the log
        asyncio.run(serve())


def _listening(port: int) -> socket.socket:
    try:
        listening = socket.create_server(("127.0.0.1", port), backlog=2048)
    except OSError as error:
        raise ConfigError(f"Port {port} cannot be used ({os.strerror(error.errno or 0)}). Choose another.") from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # of Linux; connections have the options of the socket that accepts them
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_MS)
    return listening
