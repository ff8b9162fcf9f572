"""Best settings found in five minutes, against those that an exhaustive grid finds: total throughput.

The search comes first; then every setting of the same grid is measured in two rounds of full-length samples; at last
the search's winner, the grid's best three and llama.cpp's default meet in interleaved rounds.
"""

import time
from contextlib import closing

import numpy as np

from engine.bench.analysis.summary import by_round
from engine.bench.measurement.target_pool import TargetPool
from engine.bench.planning.candidates import DEFAULT, candidates, settings_plan
from engine.bench.planning.plan import Cell, Plan
from engine.bench.planning.schedule import rounds_of
from engine.bench.running.effects import effects
from engine.bench.running.runner import Runner
from engine.bench.running.strategies import Rounds
from engine.bench.running.tuning import Tuning
from engine.samples import Samples, no_samples
from tests.speed.common import N_CTX, Reporter, Row, at_least, at_most, model, paired

ROUNDS = 12
SHAPE = "llama-1.1b-32k"
BUDGET_S = 300.0
GRID_ROUNDS = 2
NUM_BEST = 3
METRIC = "tokens_per_s"


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """The winner against the grid's best and against the default; the seconds that the search took."""
    plan = settings_plan(model(shape), "throughput", BUDGET_S, n_ctx=N_CTX)
    cells = candidates(plan)
    tuning = Tuning(plan, cells)
    began = time.monotonic()
    with closing(TargetPool()) as targets:
        search = Runner(plan, cells, targets, Reporter("search"), strategy=tuning.strategy())
        search.run()
    seconds = time.monotonic() - began
    outcome = tuning.outcome(search.samples)
    able = [cell.number for cell in cells if not cell.refusal]
    grid = rounds(plan, cells, able, GRID_ROUNDS, "grid")
    best = effects(grid, METRIC).ranked()[:NUM_BEST]
    met = rounds(plan, cells, list(dict.fromkeys([outcome["winner"], DEFAULT, *best])), num_rounds, "final")
    figures = {cell: by_round(met, cell, METRIC) for cell in np.unique(met["cell"]).tolist()}
    leader = max(best, key=lambda cell: float(np.median(list(figures[cell].values()))))
    against_best, against_default = (paired(figures, outcome["winner"], cell) for cell in (leader, DEFAULT))
    beside = f"{against_best}; {cells[outcome['winner']].label} against {cells[leader].label}"
    return [
        at_least(
            f"best settings of {BUDGET_S:.0f} s against the best of {len(able)}", against_best.value, 0.95, beside
        ),
        at_least("best settings against llama.cpp's default", against_default.value, 2.5, str(against_default)),
        at_most("the search", seconds, 1.15 * BUDGET_S, f"{outcome['num_tried']} settings tried", "s"),
    ]


def rounds(plan: Plan, cells: list[Cell], numbers: list[int], num_rounds: int, what: str) -> Samples:
    """Interleaved rounds of some of the cells, with whole samples; the default is the anchor."""
    turns = rounds_of(len(numbers), num_rounds, plan.seed, numbers.index(DEFAULT))
    strategy = Rounds([turn._replace(cell=numbers[turn.cell]) for turn in turns], cells, no_samples())
    with closing(TargetPool()) as targets:
        runner = Runner(plan, cells, targets, Reporter(what), strategy=strategy)
        runner.run()
    return runner.samples
