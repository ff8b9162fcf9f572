"""Prompts with the weights in the layout that a single stream wants, against llama-bench as a person gets it and built
as ours: what the compiler decides (docs/decisions/0008)."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from statistics import mean

from engine import Pool
from tests.speed.common import Row, at_least, interleaved, model, num_threads, output_of, prompts, ratio, sampling, warm
from tests.speed.peers import program, ways

ROUNDS = 12
SHAPE = "llama-1.1b-32k"
NUM_PROMPT, N_CTX = 256, 512


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Prompt tokens a second of a pool by its defaults, each prompt with words of its own."""
    path = model(shape)
    with warm(Pool(path, parallel=1, n_ctx=N_CTX)) as pool:
        arms: dict[str, Callable[[], float]] = {"ours": partial(_prefill_per_s, pool, count(1))}
        for way, environment in ways().items():
            arms[way] = partial(_llama_bench, path, environment)
        found = interleaved(num_rounds, **arms)
    rows = []
    for way, goal in zip(ways(), (1.3, 0.97), strict=True):
        compared = ratio(found["ours"], found[way])
        beside = f"{compared}; {mean(found['ours']):.0f} against {mean(found[way]):.0f} tok/s"
        figure = f"prompts of {NUM_PROMPT}, repacked weights, against llama-bench {way}"
        rows.append(at_least(figure, compared.value, goal, beside))
    return rows


def _prefill_per_s(pool: Pool, numbers: "count[int]") -> float:
    (ids,) = prompts(1, NUM_PROMPT, most=len(pool.vocabulary), seed=next(numbers))
    rate = pool.submit(ids, sampling(pool), max_tokens=1, reuse_prefix=False).result().timings.prefill_per_s
    assert rate is not None
    return rate


def _llama_bench(path: str, environment: Mapping[str, str]) -> float:
    words = ["-m", path, "-t", str(num_threads()), "-p", str(NUM_PROMPT), "-n", "0", "-r", "1", "-ngl", "0"]
    (found,) = json.loads(output_of([program("llama-bench"), *words, "-o", "json"], environment))
    rate: float = found["avg_ts"]
    return rate
