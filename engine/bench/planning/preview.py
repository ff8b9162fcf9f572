"""What a plan will take, told before it is launched: cells, samples, seconds, memory, and what it can find out."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from engine.bench.planning.candidates import MOST_FINALISTS, planned_cells
from engine.bench.planning.feasibility import Feasibility, fit_together
from engine.bench.planning.guesses import guess
from engine.bench.planning.plan import Plan, PlannedCell
from engine.bench.planning.schedule import MOST_REPEATS, turns_of
from engine.stats import FIRST_LOOK, smallest_ratio
from engine.units import counted, duration

USUAL_NOISE = 0.07
"""Standard deviation of the log-ratio of one round between two runs of the same thing on a shared machine."""

_TURN_S = 0.2
_NUM_WARM_UPS = 2


@dataclass(frozen=True, kw_only=True)
class Preview:
    """A plan before its launch.

    seconds: of the whole run with all loading; most_seconds: where the anchor drifts so often that everything is
    measured as many times as it may be. seconds_by_cell, and memory_by_cell (bytes of all its processes), by number.
    fits_together: the workers of all cells can stay loaded; else they are loaded anew each round. smallest_ratio: 1.05
    means that a difference of 5 % from the first cell is found in four of five runs; inf: that no difference can be
    told.
    """

    plan: Plan
    cells: tuple[PlannedCell, ...]
    num_samples: int
    seconds: float
    most_seconds: float
    seconds_by_cell: Mapping[int, float]
    memory_by_cell: Mapping[int, int]
    fits_together: bool
    smallest_ratio: float

    @property
    def refused(self) -> tuple[PlannedCell, ...]:
        """Cells that will not be measured; each says why."""
        return tuple(cell for cell in self.cells if cell.refusal)

    @property
    def sentence(self) -> str:
        """All of it in words, for the line above the button."""
        num_able = len(self.cells) - len(self.refused)
        said = [self._amount(num_able)] if num_able else []
        if self.refused:
            cannot = f"{len(self.refused):,} cannot run" if num_able else "No cell can run"
            said.append(f"{cannot}: {self.refused[0].label}: {self.refused[0].refusal}.")
        if self.plan.question != "settings" and not self.fits_together:
            said.append("The workers do not fit into memory together, so they are loaded anew each round.")
        if num_able > 1 and self.smallest_ratio < math.inf:
            said.append(
                f"Finds differences from {math.ceil(100 * (self.smallest_ratio - 1)):,} % on, at the usual noise."
            )
        elif num_able > 1:
            said.append(f"Too few rounds for any verdict: at least {FIRST_LOOK} are needed.")
        return " ".join(said)

    def _amount(self, num_able: int) -> str:
        if self.plan.question == "settings":
            return f"{counted(num_able, 'candidate')}, the better ones measured again, in {duration(self.seconds)}."
        return (
            f"{counted(num_able, 'cell')} × {counted(self.plan.rounds, 'round')}: "
            f"{counted(self.num_samples, 'sample')} with the anchor's, about {duration(self.seconds)}, "
            f"up to {duration(self.most_seconds)} if the machine is noisy."
        )


def preview(plan: Plan, *, sample_s: Mapping[int, float] | None = None, noise_sd: float = USUAL_NOISE) -> Preview:
    """Reckon what `plan` takes here.

    sample_s: seconds of one sample, by cell, where measured; the guesses for other cells are corrected by them.
    noise_sd: standard deviation of the log-ratio of one round, see engine.stats.noise_of. Raises ConfigError as
    cells_of and rounds_of do; a plan of which no cell can run is told as that.
    """
    is_search = plan.question == "settings"
    feasibility = Feasibility()
    cells = planned_cells(plan, feasibility)
    able = [cell for cell in cells if not cell.refusal]
    fits = fit_together(able, feasibility)
    num_turns = Counter(turn.cell for turn in turns_of(plan, cells, feasibility)) if able else Counter[int]()
    seconds = _seconds(plan, able, feasibility, num_turns, sample_s or {}, num_loads=1 if fits else plan.rounds)
    num_samples, total = num_turns.total(), sum(seconds.values())
    if is_search and total > plan.budget_s:
        num_samples, total = int(num_samples * plan.budget_s / total), plan.budget_s
    needs = {cell.number: feasibility.need(cell) for cell in cells}
    return Preview(
        plan=plan,
        cells=tuple(cells),
        num_samples=num_samples,
        seconds=total,
        most_seconds=total if is_search else (1 + MOST_REPEATS) * total,
        seconds_by_cell=seconds,
        memory_by_cell={number: need.total for number, need in needs.items() if need is not None},
        fits_together=fits,
        smallest_ratio=smallest_ratio(noise_sd, plan.rounds, num_comparisons=_num_comparisons(plan, len(able))),
    )


def _num_comparisons(plan: Plan, num_cells: int) -> int:
    """Cells that are compared with the first at once; of a search, those of its final."""
    return max(1, min(num_cells - 1, MOST_FINALISTS if plan.question == "settings" else num_cells))


def _seconds(
    plan: Plan,
    able: Sequence[PlannedCell],
    feasibility: Feasibility,
    num_turns: Mapping[int, int],
    sample_s: Mapping[int, float],
    num_loads: int,
) -> dict[int, float]:
    """Seconds of each cell; the first cell of a group of workers has their loading."""
    guesses = {cell.number: found for cell in able if (found := guess(cell, feasibility))}
    known = [sample_s[number] / found.sample_s for number, found in guesses.items() if number in sample_s]
    correction = median(known) if known else 1.0
    seconds = {}
    loaded = set()
    for cell in able:
        guessed = guesses[cell.number]
        sample = sample_s.get(cell.number, guessed.sample_s * correction)
        seconds[cell.number] = num_turns[cell.number] * (sample + _TURN_S) + num_loads * _NUM_WARM_UPS * sample
        if cell.worker_key not in loaded:
            loaded.add(cell.worker_key)
            seconds[cell.number] += num_loads * guessed.load_s + (guessed.cold_load_s if plan.measures_cold else 0)
    return seconds
