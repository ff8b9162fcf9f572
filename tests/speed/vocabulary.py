"""What ten candidates a token cost where the vocabulary has 152,000 entries: one stream with and without."""

from functools import partial
from statistics import mean

from engine import Pool
from tests.speed.common import N_CTX, Row, at_least, interleaved, model, prompts, ratio, run, warm

ROUNDS = 30
SHAPE = "qwen2.5-0.5b"


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Decode rates pair by pair, and the two shares of time inside llama_decode beside them."""
    shares: dict[int, list[float]] = {0: [], 10: []}

    def ours(pool: Pool, top_k: int) -> float:
        done = run(pool, prompts(1, most=len(pool.vocabulary)), top_k=top_k)
        shares[top_k].append(done.share)
        decode_per_s = done.completions[0].timings.decode_per_s
        assert decode_per_s is not None
        return decode_per_s

    with warm(Pool(model(shape), parallel=1, n_ctx=N_CTX)) as pool:
        found = interleaved(num_rounds, ten=partial(ours, pool, 10), none=partial(ours, pool, 0))
    compared = ratio(found["ten"], found["none"])
    beside = f"{compared}; shares {mean(shares[10]):.4f} and {mean(shares[0]):.4f}; {mean(found['ten']):.1f} tok/s"
    return [at_least("152k vocabulary, top_k=10 against top_k=0", compared.value, 0.95, beside)]
