"""`python -m engine serve`: the OpenAI-compatible API without pages, for the programs of this machine."""

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from engine.api import log_limit
from engine.api.openai.server import KEY_FILE, PORT, server_of
from engine.backends.known import find_known, read_known
from engine.backends.managed_programs import MANAGED, ManagedServer, default_parallel
from engine.commands import pool_flags
from engine.commands.arguments import OTHERS
from engine.commands.parser import PROGRAM, Parser
from engine.commands.table import printable
from engine.errors import ConfigError, quoted
from engine.files import named_path
from engine.models.library import embedded_model
from engine.models.reading import read_model
from engine.opening import open_engine
from engine.process.limits import return_freed_memory
from engine.settings import Settings
from engine.shutdown import Shutdown
from engine.specs import PoolSpec
from engine.workbench.model_manager import LONGEST_DEFAULT_CTX, ModelManager, default_spec
from engine.workbench.workbench import Workbench

LOADING_POLL_S = 0.1


def run(words: Sequence[str]) -> None:
    """Serve until a signal. Raises EngineError where the model cannot be loaded or the port is taken."""
    given = _parser().parse_args(words)
    settings = Settings.from_environment()
    begin = _beginning(given, settings)
    return_freed_memory()
    log_limit.install()
    bench = Workbench(settings, partial(open_engine, cluster=given.cluster))
    server = server_of(bench)

    def close() -> None:
        server.stop()
        bench.close()

    try:
        server.start(given.port, "" if given.no_key else given.api_key.strip() or None)
        begin(bench.model_manager)
        while bench.model.is_loading:
            time.sleep(LOADING_POLL_S)
        bench.model.loaded()
        print("\n".join(server.lines), flush=True)
        if bench.history_error is not None and not bench.kept.is_elsewhere:
            warning = printable(f"Calls are not stored at present: {bench.history_error}", is_terminal=True)
            print(warning, file=sys.stderr, flush=True)
        Shutdown(close).install(signal.SIGINT, signal.SIGTERM)
        threading.Event().wait()
    finally:
        close()


def _beginning(given: argparse.Namespace, settings: Settings) -> Callable[[ModelManager], None]:
    """Return what opens the engine that is asked for. Raises EngineError."""
    if not given.upstream:
        return _loading(given, settings)
    if given.cluster:
        raise ConfigError("--cluster: is for a model of this program, not for an external engine (--upstream)")
    is_known = any(one.name == given.upstream for one in read_known(settings.home))
    return _starting(given, settings) if given.upstream in MANAGED and not is_known else _connecting(given, settings)


def _starting(given: argparse.Namespace, settings: Settings) -> Callable[[ModelManager], None]:
    """Return what starts the server that is asked for. Raises EngineError for a model that is none."""
    model = named_path(given.model) if given.model else settings.model or embedded_model()
    spec = replace(default_spec(read_model(model)), parallel=default_parallel(given.upstream))
    spec = replace(spec, **pool_flags.given_values(vars(given)))
    return lambda manager: manager.connect(ManagedServer(given.upstream, model, spec))


def _loading(given: argparse.Namespace, settings: Settings) -> Callable[[ModelManager], None]:
    """Return what loads the model that is asked for. Raises EngineError for one that is none."""
    model = named_path(given.model) if given.model else settings.model or embedded_model()
    spec = replace(default_spec(read_model(model)), **pool_flags.given_values(vars(given)))
    return lambda manager: manager.load(model, spec)


def _connecting(given: argparse.Namespace, settings: Settings) -> Callable[[ModelManager], None]:
    """Return what connects to the external engine that is asked for. Raises ConfigError where none has that name."""
    engine = find_known(settings.home, given.upstream)
    own = [*(["model"] if given.model else []), *pool_flags.given_values(vars(given))]
    if own:
        raise ConfigError(f"{', '.join(own)}: set on the server itself, not here, where --upstream names one")
    return lambda manager: manager.connect(engine)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog=PROGRAM)
    serve = parser.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "serve", help=OTHERS["serve"], allow_abbrev=False
    )
    serve.add_argument(
        "--upstream",
        default="",
        metavar="NAME",
        help=f"answer by this external engine, a name of `engines list`; {' or '.join(MANAGED)}: started here with "
        "--model",
    )
    serve.add_argument(
        "--model", default="",
        help="GGUF file or folder of safetensors (default: LOGITBENCH_MODEL, else the shipped model)",
    )  # fmt: skip
    serve.add_argument(
        "--port", type=_port, default=PORT, metavar="P", help=f"port on 127.0.0.1 (default: {PORT}); 0: any free one"
    )
    key = serve.add_mutually_exclusive_group()
    key.add_argument(
        "--api-key",
        default="",
        metavar="K",
        help=f"key of the API (default: the one in the file {KEY_FILE} of the home folder)",
    )
    key.add_argument("--no-key", action="store_true", help="answer every program of this machine without a key")
    machine = serve.add_argument_group("machine")
    pool_flags.add(
        machine, "n_ctx", "parallel", "threads", "instances", "type_k", "type_v",
        "share_weights", "dtype",
        defaults={"n_ctx": f"as trained, up to {LONGEST_DEFAULT_CTX:,}", "parallel": PoolSpec.parallel},
    )  # fmt: skip
    pool_flags.add_cluster(machine)
    return parser


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{quoted(text)} must be a whole number from 0 to 65,535")
    return int(text)
