"""`python -m engine serve`: the OpenAI-compatible API without pages, for the programs of this machine."""

import argparse
import asyncio
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from engine.api import connections, log_limit
from engine.api.access_token import AccessToken
from engine.api.openai.app import make_app
from engine.commands.parser import Parser
from engine.errors import ConfigError, quoted
from engine.files import named_path
from engine.models.library import embedded_model
from engine.process.limits import raise_open_files, return_freed_memory
from engine.settings import Settings
from engine.shutdown import Shutdown
from engine.workbench.workbench import Workbench

PORT = 8080
KEY_FILE = "api-key"
LOADING_POLL_S = 0.1
KEEP_ALIVE_S = 75


def run(words: Sequence[str]) -> None:
    """Serve until a signal. Raises EngineError where the model cannot be loaded or the port is taken."""
    given = _parser().parse_args(words)
    settings = Settings.from_environment()
    model = named_path(given.model) if given.model else settings.model or embedded_model()
    key = "" if given.no_key else given.api_key.strip() or _kept_key(settings.home)
    return_freed_memory()
    log_limit.install()
    with _listening(given.port) as listening:
        bench = Workbench(settings)
        try:
            bench.model_manager.load(model)
            asyncio.run(_serve(bench, listening, key))
        finally:
            bench.close()


async def _serve(bench: Workbench, listening: socket.socket, key: str) -> None:
    """Print how programs reach the API once the model is loaded, and answer requests until a signal."""
    while bench.model.is_loading:
        await asyncio.sleep(LOADING_POLL_S)
    bench.model.loaded()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt of the event loop would be logged as a defect
    Shutdown(bench.close).install(signal.SIGINT, signal.SIGTERM)
    quota = connections.OURS._replace(idle_s=KEEP_ALIVE_S)
    connections.limit(asyncio.get_running_loop(), access="", num_files=raise_open_files(), ours=quota)
    config = uvicorn.Config(make_app(bench, key=key), log_level="warning", timeout_keep_alive=KEEP_ALIVE_S)
    print(_announcement(listening.getsockname()[1], key), flush=True)
    await _Server(config).serve(sockets=[listening])


class _Server(uvicorn.Server):
    """Server that leaves signals to Shutdown: uvicorn would wait for every stream to end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers."""
        yield


def _listening(port: int) -> socket.socket:
    """Return a listening socket, which holds connections until they are answered. Raises ConfigError."""
    try:
        return socket.create_server(("127.0.0.1", port), backlog=2048)
    except OSError as error:
        raise ConfigError(f"port {port} cannot be used ({error.strerror}); choose another by --port") from None


def _announcement(port: int, key: str) -> str:
    """Return the three lines that point a program to this API."""
    address, given = f"http://127.0.0.1:{port}/v1", key or "none"
    return "\n".join(
        (
            f"OPENAI_BASE_URL={address} OPENAI_API_KEY={given}",
            f'openai.OpenAI(base_url="{address}", api_key="{given}")',
            f"curl {address}/models" + (f' -H "Authorization: Bearer {key}"' if key else ""),
        )
    )


def _kept_key(home: Path) -> str:
    """Return the key in the home folder, made at the first use."""
    token = AccessToken(home, KEY_FILE)
    try:
        return token.text()
    except OSError as error:
        raise ConfigError(
            f"the API key in {token.path} cannot be read or written ({error}); give one by --api-key"
        ) from error


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m engine serve", description=__doc__, allow_abbrev=False)
    parser.add_argument("command", help=argparse.SUPPRESS)
    parser.add_argument("--model", default="", help="GGUF file (default: LOGITBENCH_MODEL, else the shipped model)")
    parser.add_argument(
        "--port", type=_port, default=PORT, metavar="P", help=f"port on 127.0.0.1 (default: {PORT}); 0: any free one"
    )
    key = parser.add_mutually_exclusive_group()
    key.add_argument("--api-key", default="", metavar="K", help=f"key of the API (default: the one in {KEY_FILE})")
    key.add_argument("--no-key", action="store_true", help="answer every program of this machine")
    return parser


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{quoted(text)} must be a whole number from 0 to 65,535")
    return int(text)
