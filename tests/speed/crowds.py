"""Crowds of prompts at once, as a person's pool gets them (prefixes are reused), against llama-server."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from time import perf_counter
from typing import NamedTuple

from engine import Pool
from tests.speed.common import Row, interleaved, model, prompts, run, warm
from tests.speed.many import LAYOUTS, SERVED, SHAPE, against_better, ask, layout_of, server

ROUNDS = 6
N_CTX = 512


class Crowd(NamedTuple):
    """Tokens of each prompt that all share and of its own, tokens generated for each, and the goal of the ratio."""

    num_shared: int
    num_own: int
    num_tokens: int
    goal: float


CROWDS = {
    "32 prompt tokens, 32 generated": Crowd(0, 32, 32, 1.0),
    "272 prompt tokens, 32 generated": Crowd(0, 272, 32, 1.0),
    "256 shared and 16 own prompt tokens, 16 generated": Crowd(256, 16, 16, 5.0),
}


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """A row for each kind of crowd."""
    path = model(shape)
    return [against_server(path, about, crowd, num_rounds) for about, crowd in CROWDS.items()]


def against_server(path: str, about: str, crowd: Crowd, num_rounds: int) -> Row:
    """Tokens a second from first request to last answer, ten candidates each; ours in its default weight layout, the
    server in its better one."""
    with ExitStack() as opened:
        clients = opened.enter_context(ThreadPoolExecutor(SERVED))
        pool = opened.enter_context(warm(Pool(path, parallel=SERVED, n_ctx=N_CTX)))
        draw = crowds(crowd, most=len(pool.vocabulary))
        arms: dict[str, Callable[[], float]] = {"ours": partial(_end_to_end, pool, draw, crowd)}
        for layout, flags in LAYOUTS.items():
            arms[f"server, {layout}"] = partial(serve, path, flags, draw, crowd, clients)
        found = interleaved(num_rounds, **arms)
        layout = layout_of(pool.spec)
    figure = f"32 streams, {about}, end to end, against llama-server"
    return against_better(found, "server", layout, figure, crowd.goal)


def _end_to_end(pool: Pool, draw: Callable[[], list[list[int]]], crowd: Crowd) -> float:
    return run(pool, draw(), top_k=10, max_tokens=crowd.num_tokens, is_reused=True).per_s


def crowds(crowd: Crowd, *, most: int) -> Callable[[], list[list[int]]]:
    """Gives another crowd of prompts at each call."""
    seeds = count(1)

    def draw() -> list[list[int]]:
        seed = 1_000 * next(seeds) + crowd.num_own
        (shared,) = prompts(1, crowd.num_shared, most=most, seed=seed + 500)
        return [[*shared, *own] for own in prompts(SERVED, crowd.num_own, most=most, seed=seed)]

    return draw


def serve(
    path: str, flags: list[str], draw: Callable[[], list[list[int]]], crowd: Crowd, clients: ThreadPoolExecutor
) -> float:
    """As `many.serve_once`, where the server may reuse."""
    with server(path, flags, N_CTX):
        ask(draw()[0])
        given = draw()
        began = perf_counter()
        num_tokens = sum(clients.map(partial(ask, num_tokens=crowd.num_tokens, is_reused=True), given))
        return num_tokens / (perf_counter() - began)
