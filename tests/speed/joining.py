"""How much eight streams feel it when prompts of 256 tokens join them: their gaps between tokens."""

from typing import Any

import numpy as np

from engine import Pool
from tests.speed.common import Row, at_most, model, prompts, sampling, token_times, warm

ROUNDS = 3
SHAPE = "llama-1.1b-32k"
NUM_STREAMS, NUM_JOINING, NUM_JOINED = 8, 4, 256
QUIET_TOKENS = 60

Times = list[np.ndarray[Any, np.dtype[np.float64]]]


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """95th percentile of the gaps while prompts join, over that of the same streams undisturbed."""
    with warm(Pool(model(shape), parallel=NUM_STREAMS + 1, n_ctx=512)) as pool:
        found = np.array([disturb(pool, number) for number in range(num_rounds)])
    quiet, busy = np.median(found, axis=0)
    beside = f"p95 {1e3 * busy:.0f} ms against {1e3 * quiet:.0f} ms undisturbed"
    return [at_most("8 streams while 256-token prompts join, p95 gap", float(busy / quiet), 4, beside)]


def disturb(pool: Pool, seed: int) -> tuple[float, float]:
    """95th percentiles of the gaps before prompts join and while they do, seconds."""
    most, chosen = len(pool.vocabulary), sampling(pool)
    jobs = [
        pool.submit(ids, chosen, max_tokens=400, reuse_prefix=False)
        for ids in prompts(NUM_STREAMS, 16, most=most, seed=seed)
    ]
    for job in jobs:
        for index, _ in enumerate(job):
            if index == QUIET_TOKENS:
                break
    began = ended = 0.0
    for ids in prompts(NUM_JOINING, NUM_JOINED, most=most, seed=seed + 1000):
        joining = pool.submit(ids, chosen, max_tokens=1, reuse_prefix=False)
        began = began or joining.submitted
        joining.result()
        ended = float(token_times(joining)[-1])
    if any(job.done() for job in jobs):
        raise SystemExit("A stream ended before the prompts had joined: nothing to compare.")
    for job in jobs:
        job.cancel()
        job.result()
    times = [token_times(job) for job in jobs]
    start = max(float(moments[0]) for moments in times)
    return gaps(times, start, began), gaps(times, began, ended)


def gaps(times: Times, start: float, end: float) -> float:
    """95th percentile of the gaps that end between two moments."""
    inside = np.concatenate([np.diff(one)[(one[1:] > start) & (one[1:] <= end)] for one in times])
    return float(np.percentile(inside, 95))
