"""Schedule of a run: rounds with each configuration once, shuffled and balanced, with the control in between."""

import random
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from engine.bench.planning.cells import anchor_of
from engine.bench.planning.feasibility import Feasibility, fit_together
from engine.bench.planning.plan import Plan, PlannedCell
from engine.errors import ConfigError

ANCHOR_EVERY = 6
MOST_REPEATS = 2
"""How often samples since the last good control are measured again before the machine counts as changed."""
MAX_SAMPLES = 1_000_000


class Turn(NamedTuple):
    """One sample to take. is_anchor: a control sample, in addition to the configuration's own sample of that round."""

    cell: int
    round: int
    is_anchor: bool


def turns_of(plan: Plan, cells: Sequence[PlannedCell], feasibility: Feasibility | None = None) -> list[Turn]:
    """Return the whole schedule of a plan: its rounds over the configurations that can run.

    Where their workers cannot all stay loaded, configurations with the same workers follow each other within a round,
    so that each is loaded once per round. Raises ConfigError when no configuration can run.
    """
    able = [cell for cell in cells if not cell.refusal]
    anchor = anchor_of(plan, cells)
    groups = (
        {}
        if fit_together(able, feasibility or Feasibility())
        else {index: cell.worker_key for index, cell in enumerate(able)}
    )
    place = next(index for index, cell in enumerate(able) if cell.number == anchor)
    turns = rounds_of(len(able), plan.rounds, plan.seed, place, groups=groups)
    return [turn._replace(cell=able[turn.cell].number) for turn in turns]


def rounds_of(
    num_cells: int,
    num_rounds: int,
    seed: int,
    anchor: int,
    anchor_every: int = ANCHOR_EVERY,
    groups: Mapping[int, Hashable] | None = None,
) -> list[Turn]:
    """Return `num_rounds` samples of each of the configurations 0 … num_cells − 1, and the samples of the control.

    The control comes at the start, at the end and after every `anchor_every` samples. Every other round is the previous
    one reversed, so that over each two of them all configurations come equally early. groups: configurations with an
    equal value follow each other within a round. Raises ConfigError for more than 1,000,000 samples.
    """
    if num_cells * num_rounds > MAX_SAMPLES:
        raise ConfigError(
            f"{num_cells:,} configurations × {num_rounds:,} rounds are {num_cells * num_rounds:,} samples; "
            f"up to {MAX_SAMPLES:,} are allowed: use fewer rounds or configurations"
        )
    generator = random.Random(seed)
    turns = [Turn(anchor, 0, True)]
    order: list[int] = []
    num_measured = 0
    for number in range(num_rounds):
        order = order[::-1] if number % 2 else _shuffled(num_cells, groups or {}, generator)
        for cell in order:
            if num_measured and num_measured % anchor_every == 0:
                turns.append(Turn(anchor, number, True))
            turns.append(Turn(cell, number, False))
            num_measured += 1
    return [*turns, Turn(anchor, max(0, num_rounds - 1), True)]


def _shuffled(num_cells: int, groups: Mapping[int, Hashable], generator: random.Random) -> list[int]:
    """Return all configurations in a random order, those of a group next to each other."""
    cells = list(range(num_cells))
    generator.shuffle(cells)
    first_seen: dict[Hashable, int] = {}
    for cell in cells:
        first_seen.setdefault(groups.get(cell, cell), len(first_seen))
    return sorted(cells, key=lambda cell: first_seen[groups.get(cell, cell)])
