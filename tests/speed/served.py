"""32 streams over HTTP: beside the same pool without it, and beside llama-server at the same endpoint."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection
from statistics import mean

from engine import PoolSpec
from engine.models import read_model
from engine.models.weight_layout import with_layout
from tests.speed.api import num_streamed, post, serving, streamed
from tests.speed.common import N_CTX, NUM_TOKENS, Row, at_least, interleaved, model, prompts, ratio
from tests.speed.many import LAYOUTS, SERVED, SERVER_PORT, SHAPE, against_better, layout_of, server

ROUNDS = 8
PATH = "/v1/completions"
CHAIN = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": 1}
"""llama.cpp's own, which `common.sampling` has too."""
GOALS = {"in-process": 0.97, "llama-server": 1.0}


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Tokens a second from first request to last answer, ten candidates each; in our default weight layout, and
    against llama-server in its better one."""
    path = model(shape)
    file = read_model(path)
    given = prompts(SERVED, most=file.n_vocab)
    spec = with_layout(PoolSpec(parallel=SERVED, n_ctx=N_CTX), file)
    with ExitStack() as opened:
        clients = opened.enter_context(ThreadPoolExecutor(SERVED))
        api = opened.enter_context(serving(path, spec))
        inside = partial(api.inside, "streams", prompts=given, num_tokens=NUM_TOKENS)
        inside()
        arms: dict[str, Callable[[], float]] = {
            "ours": partial(over_http, api.port, given, clients),
            "in-process": inside,
        }
        for layout, flags in LAYOUTS.items():
            arms[f"server, {layout}"] = partial(serve_once, path, flags, given, clients)
        found = interleaved(num_rounds, **arms)
    ours, inner = found["ours"], found["in-process"]
    compared = ratio(ours, inner)
    beside = f"{compared}; {mean(ours):.0f} against {mean(inner):.0f} tok/s"
    figure = "32 streams over HTTP, top_k=10, of llama-server"
    return [
        at_least("32 streams over HTTP, top_k=10, of in-process", compared.value, GOALS["in-process"], beside),
        against_better(found, "server", layout_of(spec), figure, GOALS["llama-server"]),
    ]


def serve_once(path: str, flags: list[str], given: list[list[int]], clients: ThreadPoolExecutor) -> float:
    """As `over_http`, at a fresh llama-server."""
    with server(path, flags):
        _ask(SERVER_PORT, given[0])
        return over_http(SERVER_PORT, given, clients)


def over_http(port: int, given: list[list[int]], clients: ThreadPoolExecutor) -> float:
    """Tokens a second of all prompts at once; answers are read after the clock."""
    began = time.perf_counter()
    bodies = list(clients.map(partial(_ask, port), given))
    wall_s = time.perf_counter() - began
    return sum(map(num_streamed, bodies)) / wall_s


def _ask(port: int, ids: list[int]) -> bytes:
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    found = post(connection, PATH, streamed(NUM_TOKENS, prompt=ids, **CHAIN))
    connection.close()
    return found
