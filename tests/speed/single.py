"""One stream against llama-bench: same threads, both repacked; with ten candidates a token, and with none.

llama-bench runs as a person gets it, and built and run as ours.
"""

import json
from collections.abc import Mapping
from functools import partial
from statistics import mean

from engine import Pool
from tests.speed.common import (
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
from tests.speed.peers import program, ways

ROUNDS = 30
SHAPE = "llama-1.1b-32k"
GOALS = {10: 0.97, 0: 0.985}
END_TO_END = 0.98


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Share of time inside llama_decode over the bare loop's, and tokens per second over llama-bench's."""
    path, threads, programs = model(shape), num_threads(), ways()
    shares: dict[str, list[float]] = {"bare": [], "0": [], "10": []}

    def ours(pool: Pool, top_k: int) -> float:
        done = run(pool, prompts(1, most=len(pool.vocabulary)), top_k=top_k)
        shares[str(top_k)].append(done.share)
        decode_per_s = done.completions[0].timings.decode_per_s
        assert decode_per_s is not None
        return decode_per_s

    def bare_loop() -> float:
        found = bare(path, sequences=1, threads=threads)
        shares["bare"].append(found["decode_s"] / found["wall_s"])
        return found["decode_per_s"]

    with warm(Pool(path, parallel=1, n_ctx=N_CTX)) as pool:
        found = interleaved(
            num_rounds,
            **{way: partial(llama_bench, path, threads, environment) for way, environment in programs.items()},
            ten=partial(ours, pool, 10),
            none=partial(ours, pool, 0),
            bare=bare_loop,
        )
    rows = []
    for top_k, name in ((10, "ten"), (0, "none")):
        value = mean(shares[str(top_k)]) / mean(shares["bare"])
        beside = f"{mean(found[name]):.1f} tok/s"
        figure = f"single stream, top_k={top_k}, share in llama_decode over a bare loop's"
        rows.append(at_least(figure, value, GOALS[top_k], beside))
        for way in programs:
            compared, figure = ratio(found[name], found[way]), f"end to end, top_k={top_k}, against llama-bench {way}"
            beside = f"{compared}; {mean(found[way]):.1f} tok/s"
            rows.append(at_least(figure, compared.value, END_TO_END, beside))
    beside = f"share inside llama_decode {mean(shares['bare']):.4f}"
    return [*rows, Row("bare loop", mean(found["bare"]), "tok/s", beside=beside)]


def llama_bench(path: str, threads: int, environment: Mapping[str, str]) -> float:
    """Tokens per second of llama-bench, after a prompt of the same length, once after its own warm-up."""
    words = ["-m", path, "-t", str(threads), "-p", "0", "-n", str(NUM_TOKENS), "-d", str(NUM_PROMPT), "-r", "1"]
    (found,) = json.loads(output_of([program("llama-bench"), *words, "-ngl", "0", "-o", "json"], environment))
    rate: float = found["avg_ts"]
    return rate
