"""How much sooner the first token comes when the first 256 tokens of the prompt are in the cache."""

from functools import partial

from engine import Pool
from tests.speed.common import Row, at_least, interleaved, model, prompts, ratio, sampling, warm

ROUNDS = 10
SHAPE = "llama-1.1b-32k"
NUM_PREFIX = 256
GOALS = {1: 40.0, 16: 8.0}


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Time to the first token, cold over cached, for one new token and for sixteen."""
    with warm(Pool(model(shape), parallel=4, n_ctx=512)) as pool:
        most = len(pool.vocabulary)
        (prefix,) = prompts(1, NUM_PREFIX, most=most)
        endings = iter(prompts(10_000, max(GOALS), most=most, seed=1))

        def first_token_s(num_new: int, is_cached: bool) -> float:
            if is_cached:
                pool.submit(prefix, sampling(pool), max_tokens=1, top_k=10).result()
            prompt = [*prefix, *next(endings)[:num_new]]
            job = pool.submit(prompt, sampling(pool), max_tokens=1, top_k=10, reuse_prefix=is_cached)
            timings = job.result().timings
            if is_cached and timings.num_cached < NUM_PREFIX - 1:
                raise SystemExit(f"Only {timings.num_cached} of {NUM_PREFIX} tokens were cached.")
            return timings.ttft_s

        rows = []
        for num_new, goal in GOALS.items():
            cold, cached = partial(first_token_s, num_new, False), partial(first_token_s, num_new, True)
            found = interleaved(num_rounds, cold=cold, cached=cached)
            sooner = ratio(found["cold"], found["cached"])
            figure = f"first token, {NUM_PREFIX} tokens cached against cold, {num_new} new"
            beside = f"{sooner}; {1e3 * min(found['cached']):.0f} ms at best when cached"
            rows.append(at_least(figure, sooner.value, goal, beside, "x sooner"))
    return rows
