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
from tests.speed.api import num_streamed, post, serving, streamed
from tests.speed.common import N_CTX, NUM_TOKENS, Row, at_least, interleaved, model, prompts, ratio
from tests.speed.many import LAYOUTS, SERVED, SERVER_PORT, SHAPE, better_layouts, server

ROUNDS = 8
PATH = "/v1/completions"
CHAIN = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": 1}
"""llama.cpp's own, which `common.sampling` has too."""
GOALS = {"in-process": 0.97, "llama-server": 1.0}


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Tokens a second from first request to last answer, ten candidates each; against llama-server in either layout."""
    path = model(shape)
    given = prompts(SERVED, most=read_model(path).n_vocab)
    arms: dict[str, Callable[[], float]] = {}
    with ExitStack() as opened:
        clients = opened.enter_context(ThreadPoolExecutor(SERVED))
        for layout, flags in LAYOUTS.items():
            spec = PoolSpec(parallel=SERVED, n_ctx=N_CTX, share_weights=bool(flags))
            api = opened.enter_context(serving(path, spec))
            inside = partial(api.inside, "streams", prompts=given, num_tokens=NUM_TOKENS)
            inside()
            arms[f"ours, {layout}"] = partial(over_http, api.port, given, clients)
            if not flags:
                arms["in-process"] = inside
            arms[f"server, {layout}"] = partial(serve_once, path, flags, given, clients)
        found = interleaved(num_rounds, **arms)
    ours, inner = found["ours, repacked"], found["in-process"]
    compared = ratio(ours, inner)
    beside = f"{compared}; {mean(ours):.0f} against {mean(inner):.0f} tok/s"
    return [
        at_least("32 streams over HTTP, top_k=10, of in-process", compared.value, GOALS["in-process"], beside),
        better_layouts(found, "server", "32 streams over HTTP, top_k=10, of llama-server", GOALS["llama-server"]),
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
