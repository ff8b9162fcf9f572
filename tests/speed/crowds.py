"""32 requests at once, end to end, as a person gets them from us and from llama-server: prompts of their own, and a
beginning that they share. Both may reuse what they have; each round has other words."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from statistics import mean
from time import perf_counter

from engine import Pool
from tests.speed.common import Row, at_least, interleaved, model, prompts, ratio, run, warm
from tests.speed.many import LAYOUTS, SERVED, SHAPE, ask, server

ROUNDS = 6
N_CTX = 512
CROWDS = {
    "32 prompt tokens": (0, 32),
    "272 prompt tokens": (0, 272),
    "256 shared and 16 own prompt tokens": (256, 16),
}
"""Shared and own tokens of each prompt."""


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """A row for each kind of crowd."""
    path = model(shape)
    return [against_server(path, about, *sizes, num_rounds) for about, sizes in CROWDS.items()]


def against_server(path: str, about: str, num_shared: int, num_own: int, num_rounds: int) -> Row:
    """Tokens a second from first request to last answer, ten candidates each; the server at its better layout."""
    with (
        warm(Pool(path, parallel=SERVED, n_ctx=N_CTX)) as pool,
        ThreadPoolExecutor(SERVED) as clients,
    ):
        draw = crowds(num_shared, num_own, most=len(pool.vocabulary))
        arms = {"ours": lambda: run(pool, draw(), top_k=10, is_reused=True).per_s}
        for name, flags in LAYOUTS.items():
            arms[name] = partial(serve, path, flags, draw, clients)
        found = interleaved(num_rounds, **arms)
    better = max(LAYOUTS, key=lambda name: mean(found[name]))
    compared = ratio(found["ours"], found[better])
    beside = f"{compared}; {mean(found['ours']):.0f} against {mean(found[better]):.0f} tok/s ({better} weights)"
    return at_least(f"32 streams, {about}, end to end, against llama-server", compared.value, 1.0, beside)


def crowds(num_shared: int, num_own: int, *, most: int) -> Callable[[], list[list[int]]]:
    """Gives another crowd of prompts at each call."""
    seeds = count(1)

    def draw() -> list[list[int]]:
        seed = 1_000 * next(seeds) + num_own
        (shared,) = prompts(1, num_shared, most=most, seed=seed + 500)
        return [[*shared, *own] for own in prompts(SERVED, num_own, most=most, seed=seed)]

    return draw


def serve(path: str, flags: list[str], draw: Callable[[], list[list[int]]], clients: ThreadPoolExecutor) -> float:
    """As `many.serve_once`, where the server may reuse."""
    with server(path, flags, N_CTX):
        ask(draw()[0])
        given = draw()
        began = perf_counter()
        num_tokens = sum(clients.map(partial(ask, is_reused=True), given))
        return num_tokens / (perf_counter() - began)
