"""A benchmark's prefill and decode rates of one stream against llama-bench's own, interleaved, with the same flags.

llama-bench loads the model for every sample. What one load happens to be worth, the pool would keep for all rounds, so
it is opened anew every few rounds too.
"""

from contextlib import closing

from engine.bench.analysis.summary import by_round
from engine.bench.measurement.target_pool import TargetPool
from engine.bench.planning.cells import cells_of
from engine.bench.planning.plan import Plan
from engine.bench.running.runner import Runner
from engine.samples import Samples
from tests.speed.common import NUM_TOKENS, Reporter, Row, model, num_threads, paired

ROUNDS = 60
ROUNDS_PER_LOAD = 4
SHAPE = "llama-1.1b-32k"
NUM_PROMPT = 128
THEIRS, OURS = 0, 1
FARTHEST = 0.03


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Both rates as ratios over the rounds; reached where the ratio is within 3 % of 1, its interval beside it."""
    names = {"prefill_per_s": f"pp{NUM_PROMPT}", "decode_per_s": f"tg{NUM_TOKENS}"}
    loads = {
        first: samples_of_load(shape, first, min(ROUNDS_PER_LOAD, num_rounds - first))
        for first in range(0, num_rounds, ROUNDS_PER_LOAD)
    }
    rows = []
    for metric, name in names.items():
        found = paired({cell: rates(loads, cell, metric) for cell in (THEIRS, OURS)}, OURS, THEIRS)
        is_reached = abs(found.value - 1) <= FARTHEST
        beside = f"{found}, {len(loads)} loads of the pool"
        rows.append(
            Row(f"{name} of the benchmark against llama-bench", found.value, "x", "1 ± 0.03", is_reached, beside)
        )
    return rows


def samples_of_load(shape: str, seed: int, num_rounds: int) -> Samples:
    """A benchmark of both arms, its workers started for it."""
    plan = Plan(
        question="python",
        model=model(shape),
        axes={"arm": ("llama-bench", "pool")},
        pool={"threads": num_threads(), "parallel": 1},
        workload={"num_prompt": NUM_PROMPT, "num_generated": NUM_TOKENS},
        rounds=num_rounds,
        seed=seed,
    )
    with closing(TargetPool()) as targets:
        runner = Runner(plan, cells_of(plan), targets, Reporter(f"agreement, rounds from {seed}"))
        runner.run()
    return runner.samples


def rates(loads: dict[int, Samples], cell: int, metric: str) -> dict[int, float]:
    """A cell's figure in each round, the rounds counted through all loads."""
    return {
        first + number: value
        for first, samples in loads.items()
        for number, value in by_round(samples, cell, metric).items()
    }
