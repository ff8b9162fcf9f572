"""What recording the sampler stages costs a single stream: with the default chain, and with one without top_k."""

from dataclasses import replace
from functools import partial
from itertools import count
from statistics import mean
from typing import Any

from engine import Pool, Sampling
from tests.speed.common import N_CTX, NUM_TOKENS, Row, at_least, interleaved, model, prompts, ratio, sampling, warm

ROUNDS = 20
SHAPE = ""
"""Both shapes below, or another."""
SHAPES = {"llama-1.1b-32k": 0.95, "qwen2.5-0.5b": 0.9}
GOAL_WITHOUT_TOP_K = 0.7
TOP_K = 20

_numbers = count()


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Decode rates with stages recorded over those with nothing recorded, pair by pair."""
    shapes = {shape: SHAPES.get(shape, 0.9)} if shape else SHAPES
    return [row for name, goal in shapes.items() for row in _of_shape(name, goal, num_rounds)]


def _of_shape(shape: str, goal: float, num_rounds: int) -> list[Row]:
    with warm(Pool(model(shape), parallel=1, n_ctx=N_CTX)) as pool:
        default = sampling(pool)
        flat = replace(default, top_k=0)
        recorded = {"top_k": TOP_K, "stages": True}
        found = interleaved(
            num_rounds,
            default=partial(_decode_per_s, pool, default, {"top_k": 0}),
            default_xray=partial(_decode_per_s, pool, default, recorded),
            flat=partial(_decode_per_s, pool, flat, {"top_k": 0}),
            flat_xray=partial(_decode_per_s, pool, flat, recorded),
        )
    rows = []
    for chain, words, least in (("default", "default chain", goal), ("flat", "without top_k", GOAL_WITHOUT_TOP_K)):
        compared = ratio(found[f"{chain}_xray"], found[chain])
        beside = f"{compared}; {mean(found[f'{chain}_xray']):.1f} against {mean(found[chain]):.1f} tok/s"
        rows.append(at_least(f"X-ray, {shape}, {words}, against nothing recorded", compared.value, least, beside))
    return rows


def _decode_per_s(pool: Pool, chain: Sampling, recorded: dict[str, Any]) -> float:
    (ids,) = prompts(1, most=len(pool.vocabulary), seed=next(_numbers))
    rate = pool.submit(ids, chain, max_tokens=NUM_TOKENS, **recorded).result().timings.decode_per_s
    assert rate is not None
    return rate
