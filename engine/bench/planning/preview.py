"""Plan preview before the launch: configurations, samples, seconds, memory, and detectable differences."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from engine.bench.planning.candidates import MOST_FINALISTS, planned_cells
from engine.bench.planning.feasibility import Feasibility, fit_together
from engine.bench.planning.guesses import TURN_S, guess
from engine.bench.planning.plan import Plan, PlannedCell
from engine.bench.planning.schedule import MOST_REPEATS, turns_of
from engine.stats import FIRST_LOOK, rounds_needed, smallest_ratio
from engine.units import counted, duration

USUAL_NOISE = 0.07
"""Standard deviation of the log-ratio of one round between two runs of the same configuration on a shared machine."""

OFFERED_RATIO = 1.1
"""Difference that the larger of the offered numbers of rounds detects."""

_NUM_WARM_UPS = 2


class Offer(NamedTuple):
    """Rounds that can give a verdict, the smallest ratio that four of five such runs detect, and seconds in all."""

    rounds: int
    smallest_ratio: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Preview:
    """Preview of a plan before its launch.

    seconds: of the whole run with all loading; most_seconds: where the control drifts so often that everything is
    measured as many times as allowed. seconds_by_cell, and memory_by_cell (bytes of all its processes), by number.
    fits_together: the workers of all configurations can stay loaded; else they are loaded anew each round.
    smallest_ratio: 1.05 means that a difference of 5 % from the first configuration is detected in four of five runs;
    inf: that no difference can be detected. offers: in that case, numbers of rounds that can detect one, the fewest
    first.
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
    offers: tuple[Offer, ...] = ()

    @property
    def refused(self) -> tuple[PlannedCell, ...]:
        """Configurations that will not be measured; each has its reason."""
        return tuple(cell for cell in self.cells if cell.refusal)

    @property
    def sentence(self) -> str:
        """Whole preview in words, for the line above the button."""
        num_able = len(self.cells) - len(self.refused)
        said = [self._amount(num_able)] if num_able else []
        if self.refused:
            cannot = f"{len(self.refused):,} cannot run" if num_able else "No configuration can run"
            said.append(f"{cannot}: {self.refused[0].label}: {self.refused[0].refusal}.")
        if self.plan.question != "settings" and not self.fits_together:
            said.append("The workers do not fit in memory together, so they are reloaded each round.")
        if num_able > 1 and self.smallest_ratio < math.inf:
            said.append(f"Detects differences of {share_of(self.smallest_ratio)} or more at typical noise.")
        elif self.offers:
            said.append(f"No verdict is possible with {counted(self.plan.rounds, 'round')}: {self._offered}.")
        return " ".join(said)

    @property
    def _offered(self) -> str:
        fewest, *more = self.offers
        found = [f"{fewest.rounds:,} is the minimum and detects {share_of(fewest.smallest_ratio)} or more"]
        return "; ".join([*found, *(f"{one.rounds:,} detect {share_of(one.smallest_ratio)}" for one in more)])

    def _amount(self, num_able: int) -> str:
        if self.plan.question == "settings":
            return f"{counted(num_able, 'candidate')}, the better ones measured again, in {duration(self.seconds)}."
        return (
            f"{counted(num_able, 'configuration')} × {counted(self.plan.rounds, 'round')}: "
            f"{counted(self.num_samples, 'sample')}, including the control, about {duration(self.seconds)}, "
            f"up to {duration(self.most_seconds)} if the machine is noisy."
        )


def preview(plan: Plan, *, sample_s: Mapping[int, float] | None = None, noise_sd: float = USUAL_NOISE) -> Preview:
    """Estimate what `plan` takes on this machine.

    sample_s: measured seconds of one sample, by configuration; the guesses for the others are corrected by them.
    noise_sd: standard deviation of the log-ratio of one round, see engine.stats.noise_of. Raises ConfigError as
    cells_of and rounds_of do; a plan of which no configuration can run is reported as such.
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
    num_comparisons = _num_comparisons(plan, len(able))
    return Preview(
        plan=plan,
        cells=tuple(cells),
        num_samples=num_samples,
        seconds=total,
        most_seconds=total if is_search else (1 + MOST_REPEATS) * total,
        seconds_by_cell=seconds,
        memory_by_cell={number: need.total for number, need in needs.items() if need is not None},
        fits_together=fits,
        smallest_ratio=smallest_ratio(noise_sd, plan.rounds, num_comparisons=num_comparisons),
        offers=_offers(plan, noise_sd, num_comparisons, total) if len(able) > 1 else (),
    )


def share_of(ratio: float) -> str:
    """Return how far a ratio is above 1, in whole percent, rounded up."""
    return f"{math.ceil(100 * (ratio - 1) - 1e-9):,} %"


def _offers(plan: Plan, noise_sd: float, num_comparisons: int, seconds: float) -> tuple[Offer, ...]:
    """Return the fewest rounds of a verdict, and those that detect OFFERED_RATIO; none where the plan has enough."""
    if plan.rounds >= FIRST_LOOK:
        return ()
    needed = rounds_needed(noise_sd, OFFERED_RATIO, num_comparisons=num_comparisons)
    return tuple(
        Offer(
            rounds,
            smallest_ratio(noise_sd, rounds, num_comparisons=num_comparisons),
            seconds * rounds / plan.rounds,
        )
        for rounds in sorted({FIRST_LOOK, needed})
    )


def _num_comparisons(plan: Plan, num_cells: int) -> int:
    """Return how many configurations are compared with the first at once; for a search, those of its final."""
    return max(1, min(num_cells - 1, MOST_FINALISTS if plan.question == "settings" else num_cells))


def _seconds(
    plan: Plan,
    able: Sequence[PlannedCell],
    feasibility: Feasibility,
    num_turns: Mapping[int, int],
    sample_s: Mapping[int, float],
    num_loads: int,
) -> dict[int, float]:
    """Return the seconds of each configuration; the first of a group that shares workers includes their loading."""
    guesses = {cell.number: found for cell in able if (found := guess(cell, feasibility))}
    known = [sample_s[number] / found.sample_s for number, found in guesses.items() if number in sample_s]
    correction = median(known) if known else 1.0
    seconds = {}
    loaded = set()
    for cell in able:
        guessed = guesses[cell.number]
        sample = sample_s.get(cell.number, guessed.sample_s * correction)
        seconds[cell.number] = num_turns[cell.number] * (sample + TURN_S) + num_loads * _NUM_WARM_UPS * sample
        if cell.worker_key not in loaded:
            loaded.add(cell.worker_key)
            seconds[cell.number] += num_loads * guessed.load_s + (guessed.cold_load_s if plan.measures_cold else 0)
    return seconds
