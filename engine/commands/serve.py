"""`python -m engine serve`: the OpenAI-compatible API without pages, for the programs of this machine."""

import argparse
import asyncio
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from engine.api.access_token import AccessToken
from engine.api.openai.app import make_app
from engine.commands.parser import Parser
from engine.errors import ConfigError
from engine.files import named_path
from engine.models.library import embedded_model
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
    key = "" if given.no_key else given.api_key or _kept_key(settings.home)
    bench = Workbench(settings)
    try:
        serve(bench, model, given.port, key)
    finally:
        bench.close()


def serve(bench: Workbench, model: Path, port: int, key: str) -> None:
    """Load the model, print how programs reach it, and answer requests until a signal."""
    bench.model_manager.load(model)
    app = make_app(bench, key=key)
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", timeout_keep_alive=KEEP_ALIVE_S)
    asyncio.run(_served(_Server(config, _announcement(port, key)), bench))


async def _served(server: "_Server", bench: Workbench) -> None:
    while bench.model.is_loading:
        await asyncio.sleep(LOADING_POLL_S)
    bench.model.loaded()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt of the event loop would be logged as a defect
    Shutdown(bench.close).install(signal.SIGINT, signal.SIGTERM)
    await server.serve()


class _Server(uvicorn.Server):
    """Server that prints `announcement` once it listens, and leaves signals to Shutdown."""

    def __init__(self, config: uvicorn.Config, announcement: str) -> None:
        super().__init__(config)
        self._announcement = announcement

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers: uvicorn's would wait for every stream to end."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. Raises ConfigError where the port is taken."""
        try:
            await super().startup(sockets=sockets)
        except SystemExit:
            raise ConfigError(
                f"port {self.config.port} cannot be used: another program may have it; choose another"
            ) from None
        print(self._announcement, flush=True)


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
    parser.add_argument("--port", type=_port, default=PORT, metavar="P", help=f"port on 127.0.0.1 (default: {PORT})")
    key = parser.add_mutually_exclusive_group()
    key.add_argument("--api-key", default="", metavar="K", help=f"key of the API (default: the one in {KEY_FILE})")
    key.add_argument("--no-key", action="store_true", help="answer every program of this machine")
    return parser


def _port(text: str) -> int:
    number = int(text)
    if not 0 < number < 1 << 16:
        raise ValueError
    return number
