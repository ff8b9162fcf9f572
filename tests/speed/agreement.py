"""A benchmark's prefill and decode rates of one stream against llama-bench's own, interleaved, with the same flags."""

from contextlib import closing

from engine.bench.findings.summary import by_round
from engine.bench.measuring.fleet import Fleet
from engine.bench.planning.cells import cells_of
from engine.bench.planning.plan import Plan
from engine.bench.running.runner import Runner
from tests.speed.common import NUM_TOKENS, Row, Told, model, num_threads, paired

ROUNDS = 30
SHAPE = "llama-1.1b-32k"
NUM_PROMPT = 128
THEIRS, OURS = 0, 1
FARTHEST = 0.03


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Both rates as ratios over the rounds; reached where the ratio is within 3 % of 1, its interval beside it."""
    plan = Plan(
        question="python",
        model=model(shape),
        axes={"arm": ("llama-bench", "pool")},
        pool={"threads": num_threads(), "parallel": 1},
        workload={"num_prompt": NUM_PROMPT, "num_generated": NUM_TOKENS},
        rounds=num_rounds,
    )
    cells = cells_of(plan)
    with closing(Fleet()) as fleet:
        runner = Runner(plan, cells, fleet, Told("agreement"))
        runner.run()
    rows = []
    for name, metric in ((f"pp{NUM_PROMPT}", "prefill_per_s"), (f"tg{NUM_TOKENS}", "decode_per_s")):
        figures = {number: by_round(runner.samples, number, metric) for number in (THEIRS, OURS)}
        found = paired(figures, OURS, THEIRS)
        is_reached = abs(found.value - 1) <= FARTHEST
        rows.append(
            Row(f"{name} of the benchmark against llama-bench", found.value, "x", "1 ± 0.03", is_reached, f"{found}")
        )
    return rows
