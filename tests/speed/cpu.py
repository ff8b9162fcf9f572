"""Processor time of a token outside llama_decode: in the worker, and in the process that asked."""

from statistics import median

from engine import Pool
from tests.speed.common import N_CTX, Row, at_most, model, num_threads, prompts, run, warm

ROUNDS = 5
SHAPE = "llama-1.1b-32k"
GOALS = {"worker": 0.4, "parent": 0.2}


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Milliseconds a generated token, top_k=10, with one stream and with 32."""
    rows = []
    for num_streams in (1, 32):
        asked = Pool(model(shape), threads=num_threads(), parallel=num_streams, n_ctx=N_CTX)
        with warm(asked) as pool:
            given = prompts(num_streams, most=len(pool.vocabulary))
            done = [run(pool, given, top_k=10) for _ in range(num_rounds)]
        figures = {
            "worker": median(1e3 * one.worker_cpu_s / one.num_generated for one in done),
            "parent": median(1e3 * one.parent_cpu_s / one.num_generated for one in done),
        }
        streams = "1 stream" if num_streams == 1 else f"{num_streams} streams"
        for part, value in figures.items():
            rows.append(at_most(f"CPU a token outside decode, {part}, {streams}", value, GOALS[part], unit="ms"))
    return rows
