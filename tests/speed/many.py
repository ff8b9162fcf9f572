"""Many streams at once against llama.cpp's own programs and against two processes of llama-cpp-python."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPConnection
from statistics import mean
from types import MappingProxyType

import numpy as np

from engine import Pool, PoolSpec
from engine.models import read_model
from engine.process.child import huge_pages
from tests.speed.common import (
    MODELS,
    N_CTX,
    NUM_PROMPT,
    NUM_TOKENS,
    Row,
    at_least,
    bare,
    interleaved,
    model,
    num_threads,
    output_of,
    prompts,
    ratio,
    run,
    warm,
)
from tests.speed.peers import ROOT, program, ways

ROUNDS = 30
SERVER_ROUNDS = 8
PYTHON_ROUNDS = 8
SHAPE = "llama-1.1b-32k"
MOST, SERVED = 64, 32
PREFILL = 512
SERVER_PORT = 18_432
LAYOUTS = {"repacked": [], "as in the file": ["--no-repack"]}


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """64 streams against batched-bench and create_completion, 32 against llama-server."""
    path = model(shape)
    return [
        *against_batched_bench(path, num_rounds),
        *against_server(path, min(num_rounds, SERVER_ROUNDS)),
        *against_python(path, min(num_rounds, PYTHON_ROUNDS)),
    ]


def open_pool(path: str, num_streams: int) -> Pool:
    """A pool of so many streams, by its other defaults."""
    return Pool(path, parallel=num_streams, n_ctx=N_CTX)


def against_batched_bench(path: str, num_rounds: int) -> list[Row]:
    """Decode phase with ten candidates a token; prompts wait for streams as they do by default."""
    shares: dict[str, list[float]] = {"ours": [], "bare": []}

    def ours(pool: Pool, given: list[list[int]]) -> float:
        done = run(pool, given, top_k=10)
        shares["ours"].append(done.share)
        return done.decode_per_s

    def bare_loop() -> float:
        found = bare(path, sequences=MOST, threads=num_threads())
        shares["bare"].append(found["decode_s"] / found["wall_s"])
        return found["decode_per_s"]

    with warm(open_pool(path, MOST)) as pool:
        given = prompts(MOST, most=len(pool.vocabulary))
        peer = partial(batched_bench, path)
        found = interleaved(num_rounds, ours=partial(ours, pool, given), peer=peer, bare=bare_loop)
    value = mean(shares["ours"]) / mean(shares["bare"])
    beside = f"end to end {ratio(found['ours'], found['peer'])}; {mean(found['ours']):.0f} tok/s"
    return [
        at_least("64 streams, top_k=10, decode phase, against batched-bench", value, 0.95, beside),
        Row("batched-bench, 64 sequences", mean(found["peer"]), "tok/s"),
        Row("bare loop, 64 sequences", mean(found["bare"]), "tok/s"),
    ]


def against_python(path: str, num_rounds: int) -> list[Row]:
    """The whole run of 64 streams beside two processes of create_completion."""
    with warm(open_pool(path, MOST)) as pool:
        given = prompts(MOST, most=len(pool.vocabulary))
        found = interleaved(
            num_rounds, ours=lambda: run(pool, given, top_k=10).per_s, peer=partial(create_completion, path)
        )
    compared = ratio(found["ours"], found["peer"])
    beside = f"{compared}; {mean(found['ours']):.0f} against {mean(found['peer']):.1f} tok/s, prompts included"
    return [at_least("64 streams against 2 processes of create_completion(logprobs=10)", compared.value, 5, beside)]


def batched_bench(path: str) -> float:
    """Tokens per second of the decode phase of llama-batched-bench with separate KV streams."""
    words = ["-m", path, "-c", str(MOST * N_CTX), "-b", "2048", "-ub", str(PREFILL), "-ngl", "0"]
    words += ["-npp", str(NUM_PROMPT), "-ntg", str(NUM_TOKENS), "-npl", str(MOST)]
    words += ["-t", str(num_threads()), "-tb", str(num_threads()), "--output-format", "jsonl"]
    lines = output_of([program("llama-batched-bench"), *words], huge_pages()).splitlines()
    (found,) = (json.loads(line) for line in lines if line.startswith("{"))
    rate: float = found["speed_tg"]
    return rate


def against_server(path: str, num_rounds: int) -> list[Row]:
    """End to end with 32 streams and ten candidates a token, in our default weight layout and in both of the server's;
    the server as a person gets it, and built and run as ours."""
    with ExitStack() as opened:
        clients = opened.enter_context(ThreadPoolExecutor(SERVED))
        pool = opened.enter_context(warm(open_pool(path, SERVED)))
        given = prompts(SERVED, most=len(pool.vocabulary))
        arms: dict[str, Callable[[], float]] = {"ours": partial(_end_to_end, pool, given)}
        for layout, flags in LAYOUTS.items():
            for way, environment in ways().items():
                arms[f"{way}, {layout}"] = partial(serve_once, path, flags, environment, given, clients)
        found = interleaved(num_rounds, **arms)
        layout = layout_of(pool.spec)
    return [
        against_better(found, way, layout, f"32 streams, top_k=10, end to end, against llama-server {way}", goal)
        for way, goal in zip(ways(), (1.15, 1.0), strict=True)
    ]


def layout_of(spec: PoolSpec) -> str:
    """Return the name of the layout that a pool has chosen."""
    return list(LAYOUTS)[bool(spec.share_weights)]


def _end_to_end(pool: Pool, given: list[list[int]]) -> float:
    return run(pool, given, top_k=10).per_s


def against_better(found: dict[str, list[float]], peer: str, layout: str, figure: str, goal: float) -> Row:
    """Row of ours, in its default weight layout, against a peer in its better one.

    found: tokens a second of each round, "ours" and "<peer>, <layout>".
    """
    theirs = max(LAYOUTS, key=lambda layout: mean(found[f"{peer}, {layout}"]))
    values, peers = found["ours"], found[f"{peer}, {theirs}"]
    compared = ratio(values, peers)
    beside = f"{compared}; {mean(values):.0f} ({layout}) against {mean(peers):.0f} tok/s ({theirs})"
    if theirs != next(iter(LAYOUTS)):
        beside += f"; against its default layout {ratio(values, found[f'{peer}, {next(iter(LAYOUTS))}'])}"
    return at_least(figure, compared.value, goal, beside)


def serve_once(
    path: str, flags: list[str], environment: dict[str, str], given: list[list[int]], clients: ThreadPoolExecutor
) -> float:
    """Tokens per second of one round of requests to a fresh llama-server, first request to last answer."""
    with server(path, [*flags, "--no-cache-prompt"], environment=environment):
        ask(given[0])
        began = time.perf_counter()
        num_tokens = sum(clients.map(ask, given))
        return num_tokens / (time.perf_counter() - began)


@contextmanager
def server(
    path: str, flags: list[str], n_ctx: int = N_CTX, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[None]:
    """llama-server with 32 slots of `n_ctx` tokens, ready; ended at the end. environment: variables besides its own."""
    words = ["-m", path, "-c", str(SERVED * n_ctx), "-np", str(SERVED), "-b", "2048", "-ub", str(PREFILL), "-ngl", "0"]
    words += ["-t", str(num_threads()), "-tb", str(num_threads()), "--no-kv-unified"]
    words += ["--host", "127.0.0.1", "--port", str(SERVER_PORT), *flags]
    with (MODELS / "llama-server.log").open("w") as log:
        process = subprocess.Popen(
            [program("llama-server"), *words], stdout=log, stderr=subprocess.STDOUT, env=os.environ | environment
        )
        try:
            while not is_ready():
                if process.poll() is not None:
                    sys.exit(f"llama-server ended with {process.returncode}; its words are in {log.name}.")
                time.sleep(0.2)
            yield
        finally:
            process.terminate()
            process.wait()


def is_ready() -> bool:
    """True once the server has loaded its model."""
    connection = HTTPConnection("127.0.0.1", SERVER_PORT, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def ask(ids: list[int], *, num_tokens: int = NUM_TOKENS, is_reused: bool = False) -> int:
    """One request with the ten most probable tokens of each step; gives the number of tokens that came."""
    body = {"prompt": ids, "n_predict": num_tokens, "n_probs": 10, "ignore_eos": True, "cache_prompt": is_reused}
    connection = HTTPConnection("127.0.0.1", SERVER_PORT, timeout=600)
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    found = json.loads(connection.getresponse().read())
    connection.close()
    num: int = found["tokens_predicted"]
    # The server leaves out tokens that are no whole character, so only those it tells of have candidates.
    if num != num_tokens or any(len(step["top_logprobs"]) != 10 for step in found["completion_probabilities"]):
        sys.exit(f"llama-server gave {num} tokens, not {num_tokens}, or not ten candidates of each.")
    return num


PEER = """
import json, sys, time
from llama_cpp import Llama
path, prompts, num_tokens = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
llm = Llama(path, n_ctx=256, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False)
bias = {llm.token_eos(): float("-inf")}
ask = dict(logprobs=10, logit_bias=bias, seed=1)
llm.create_completion(prompts[0], max_tokens=2, **ask)
print("ready", flush=True)
sys.stdin.readline()
num = sum(llm.create_completion(p, max_tokens=num_tokens, **ask)["usage"]["completion_tokens"] for p in prompts)
print(num)
"""


def create_completion(path: str) -> float:
    """Tokens per second of two processes with one thread each; four prompts each, as more would not be faster."""
    given = np.array_split(np.array(prompts(8, most=read_model(path).n_vocab)), 2)
    words = [sys.executable, "-c", PEER, path]
    processes = [
        subprocess.Popen(
            [*words, json.dumps(part.tolist()), str(NUM_TOKENS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        for part in given
    ]
    streams = [(process.stdin, process.stdout) for process in processes]
    for _, out in streams:
        assert out is not None
        if out.readline().strip() != "ready":
            sys.exit("llama-cpp-python could not run this model.")
    began = time.perf_counter()
    for into, _ in streams:
        assert into is not None
        into.write("go\n")
        into.flush()
    num_tokens = sum(int(out.readline()) for _, out in streams if out is not None)
    rate = num_tokens / (time.perf_counter() - began)
    for process in processes:
        process.communicate()
    return rate
