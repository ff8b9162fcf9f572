"""What a further instance costs in memory (PSS) beyond its KV cache when the weights are shared."""

from engine import Pool, PoolSpec
from engine.models import estimate, read_model
from tests.speed.common import Row, at_most, model, prompts, sampling

ROUNDS = 1
SHAPE = "llama-1.1b-32k"
MOST_INSTANCES = 3
MB = 1e6


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Growth of the workers' PSS from one to three instances, each after a scored prompt of 300 tokens."""
    path = model(shape)
    spec = PoolSpec(parallel=16, n_ctx=512, n_ubatch=256, share_weights=True, threads=1)
    kv = estimate(read_model(path), spec).kv
    growth = []
    for _ in range(num_rounds):
        first, last = (pss(path, spec, num) for num in (1, MOST_INSTANCES))
        growth.append((last - first) / (MOST_INSTANCES - 1))
    each = max(growth)
    beside = f"{each / MB:.0f} MB with its KV cache of {kv / MB:.0f} MB"
    return [at_most("each further instance, PSS beyond its KV cache", (each - kv) / MB, 60, beside, "MB")]


def pss(path: str, spec: PoolSpec, num_instances: int) -> float:
    """Bytes of all workers together, after each has scored a prompt of its own."""
    with Pool(path, **(spec.to_dict() | {"instances": num_instances})) as pool:
        given = prompts(num_instances, 300, most=len(pool.vocabulary))
        jobs = [
            pool.submit(ids, sampling(pool), max_tokens=16, top_k=10, prompt_logprobs=True, reuse_prefix=False)
            for ids in given
        ]
        for job in jobs:
            job.result()
        figures = pool.measure()
        if any(worker["num_tokens"] < 300 for worker in figures):
            raise SystemExit("One of the instances had nothing to do: its memory says nothing.")
        return sum(worker["pss_bytes"] for worker in figures)
