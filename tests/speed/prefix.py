"""How much sooner the first token comes when the first 256 tokens of the prompt are in the cache, and how much faster
four answers over one context are scored when it is computed once."""

from functools import partial
from itertools import count
from time import perf_counter

from engine import Pool
from engine.specs import RequestOptions
from tests.speed.common import Row, at_least, interleaved, model, prompts, ratio, sampling, warm

ROUNDS = 10
SHAPE = "llama-1.1b-32k"
NUM_PREFIX = 256
GOALS = {1: 40.0, 16: 8.0}
NUM_CONTEXT, NUM_CHOICES, NUM_CHOICE, CHOICES_GOAL = 512, 4, 5, 2.5


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Time to the first token, cold over cached, for one new token and for sixteen; time of four scored answers."""
    with warm(Pool(model(shape), parallel=4, n_ctx=NUM_CONTEXT + 64)) as pool:
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
        return [*rows, choices(pool, num_rounds)]


def choices(pool: Pool, num_rounds: int) -> Row:
    """Seconds from the first of four scored answers to the last, submitted at once: each computed, over shared."""
    seeds = count(1)

    def score_s(is_shared: bool) -> float:
        seed, most = next(seeds), len(pool.vocabulary)
        (context,) = prompts(1, NUM_CONTEXT, most=most, seed=1_000 + seed)
        own = prompts(NUM_CHOICES, NUM_CHOICE, most=most, seed=2_000 + seed)
        options = RequestOptions(max_tokens=0, top_k=10, prompt_logprobs=True, reuse_prefix=is_shared)
        began = perf_counter()
        jobs = [pool.submit([*context, *each], sampling(pool), **options) for each in own]
        computed = sum(done.timings.num_prompt - done.timings.num_cached for done in (job.result() for job in jobs))
        took = perf_counter() - began
        if (computed < NUM_CHOICES * NUM_CONTEXT) != is_shared:
            raise SystemExit(f"{computed} tokens were computed.")
        return took

    found = interleaved(num_rounds, each=partial(score_s, False), once=partial(score_s, True))
    faster = ratio(found["each"], found["once"])
    beside = f"{faster}; {min(found['once']):.2f} s at best"
    return at_least(f"{NUM_CHOICES} choices over {NUM_CONTEXT} shared tokens", faster.value, CHOICES_GOAL, beside, "x")
