"""What HTTP adds: to a request of one token, and to each token in processor time of the process in front."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Any

from tests.speed.api import Api, chat_model, num_streamed, post, serving, streamed
from tests.speed.common import Row, at_most, interleaved, model

ROUNDS = 300
SHAPE = ""
"""The shipped model, or another shape, which has no chats."""
PROMPT = "Once upon a time there was a fox who"
MESSAGES = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": "Where does the fox live?"}]
LATENCY_GOALS_MS = {"completion": 2, "chat": 4}
CPU_GOAL_US, CPU_ROUNDS, CPU_STREAMS, CPU_TOKENS = 100, 5, 4, 400


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Rows of latency, then of processor time."""
    with serving(model(shape) if shape else chat_model()) as api:
        rows = [added(api, "completion", "/v1/completions", num_rounds, prompt=PROMPT)]
        if not shape:
            rows.append(added(api, "chat", "/v1/chat/completions", num_rounds, messages=MESSAGES))
        return [*rows, *cpu_of_tokens(api, min(num_rounds, CPU_ROUNDS))]


def added(api: Api, what: str, path: str, num_rounds: int, **given: Any) -> Row:
    """Milliseconds that HTTP adds to a request of one token: medians over one connection and over none, in turn."""
    connection = api.connect()

    def over_http() -> float:
        began = time.perf_counter()
        post(connection, path, {**given, "max_tokens": 1, "seed": 1})
        return time.perf_counter() - began

    arms: dict[str, Callable[[], float]] = {"http": over_http, "inside": partial(api.inside, what, **given)}
    interleaved(10, **arms)
    found = interleaved(num_rounds, **arms)
    connection.close()
    http, inside = (1e3 * median(found[name]) for name in ("http", "inside"))
    beside = f"{http:.2f} against {inside:.2f} ms"
    return at_most(f"one-token {what}, HTTP minus in-process", http - inside, LATENCY_GOALS_MS[what], beside, "ms")


def cpu_of_tokens(api: Api, num_rounds: int) -> list[Row]:
    """Processor microseconds of the server's own process a token, ten candidates, four clients; streamed and whole."""
    arms = {name: partial(_cpu_us, api, is_streamed=name == "streamed") for name in ("streamed", "whole")}
    arms["streamed"]()
    found = interleaved(num_rounds, **arms)
    beside = f"a whole answer: {median(found['whole']):.0f} µs"
    value = median(found["streamed"])
    return [at_most("CPU a streamed token over HTTP, top_k=10, process in front", value, CPU_GOAL_US, beside, "µs")]


def _cpu_us(api: Api, *, is_streamed: bool) -> float:
    body = streamed(CPU_TOKENS, prompt=PROMPT, seed=1)
    if not is_streamed:
        body |= {"stream": False, "stream_options": None}

    def ask(_number: int) -> bytes:
        connection = api.connect()
        found = post(connection, "/v1/completions", body)
        connection.close()
        return found

    before = api.cpu_s
    with ThreadPoolExecutor(CPU_STREAMS) as clients:
        bodies = list(clients.map(ask, range(2 * CPU_STREAMS)))
    cpu_s = api.cpu_s - before
    if is_streamed:
        assert all(num_streamed(one) == CPU_TOKENS for one in bodies)
    return 1e6 * cpu_s / (len(bodies) * CPU_TOKENS)
