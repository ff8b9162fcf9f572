"""Plan preview before the launch: configurations, samples, seconds, memory, and detectable differences."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from engine.bench.planning.candidates import MOST_FINALISTS, planned_cells
from engine.bench.planning.feasibility import Feasibility, fit_together
from engine.bench.planning.guesses import NUM_WARM_UPS, TURN_S, guess
from engine.bench.planning.plan import Cell, Plan, PlannedCell
from engine.bench.planning.remote import describe_requests, remote_requests, sent_by
from engine.bench.planning.schedule import MOST_REPEATS, turns_of
from engine.bench.planning.search_time import search_time
from engine.stats import FIRST_LOOK, rounds_needed, smallest_ratio
from engine.units import counted, duration

USUAL_NOISE = 0.07
"""Standard deviation of the log-ratio of one round between two runs of the same configuration on a shared machine."""

OFFERED_RATIO = 1.1
"""Difference that the larger of the offered numbers of rounds detects."""


class Offer(NamedTuple):
    """Rounds that can give a verdict, the smallest ratio that four of five such runs detect, and seconds in all.

    The rounds of a search for settings are those of its final, and the seconds are the budget that allows them.
    """

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
    first. remote: about how many prompts or texts go to each address that is not on this machine.
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
    remote: Mapping[str, int] = field(default_factory=dict)

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
        said.append(describe_requests(self.remote, sent_by(self.plan)))
        return " ".join(filter(None, [*said, self.shortage]))

    @property
    def shortage(self) -> str:
        """Why the plan cannot give a verdict, and what would; empty where it can, or where nothing is compared."""
        if not self.offers:
            return ""
        if self.plan.question == "settings":
            (offer,) = self.offers
            enough = f"{duration(offer.seconds)} should suffice and detect {share_of(offer.smallest_ratio)} or more"
            return f"{duration(self.plan.budget_s)} is too short for a verdict: {enough}."
        return f"No verdict is possible with {counted(self.plan.rounds, 'round')}: {self._offered}."

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
    cells_of, rounds_of and remote_requests do; a plan of which no configuration can run is reported as such.
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
    verdicts = _Verdicts(noise_sd, _num_comparisons(plan, len(able)))
    rounds, offers = (
        _of_search(plan, cells, feasibility, verdicts) if is_search else (plan.rounds, _offers(plan, verdicts, total))
    )
    return Preview(
        plan=plan,
        cells=tuple(cells),
        num_samples=num_samples,
        seconds=total,
        most_seconds=total if is_search else (1 + MOST_REPEATS) * total,
        seconds_by_cell=seconds,
        memory_by_cell={number: need.total for number, need in needs.items() if need is not None},
        fits_together=fits,
        smallest_ratio=verdicts.smallest_ratio(rounds),
        offers=offers if len(able) > 1 else (),
        remote=remote_requests(plan, cells, feasibility),
    )


def share_of(ratio: float) -> str:
    """Return how far a ratio is above 1, in whole percent, rounded up."""
    return f"{math.ceil(100 * (ratio - 1) - 1e-9):,} %"


class _Verdicts(NamedTuple):
    """What rounds can detect, at this noise and for as many comparisons at once."""

    noise_sd: float
    num_comparisons: int

    def smallest_ratio(self, rounds: int) -> float:
        return smallest_ratio(self.noise_sd, rounds, num_comparisons=self.num_comparisons)

    def rounds_needed(self, ratio: float) -> int:
        return rounds_needed(self.noise_sd, ratio, num_comparisons=self.num_comparisons)


def _offers(plan: Plan, verdicts: _Verdicts, seconds: float) -> tuple[Offer, ...]:
    """Return the fewest rounds of a verdict, and those that detect OFFERED_RATIO; none where the plan has enough."""
    if plan.rounds >= FIRST_LOOK:
        return ()
    enough = sorted({FIRST_LOOK, verdicts.rounds_needed(OFFERED_RATIO)})
    return tuple(Offer(rounds, verdicts.smallest_ratio(rounds), seconds * rounds / plan.rounds) for rounds in enough)


def _of_search(
    plan: Plan, cells: Sequence[PlannedCell], feasibility: Feasibility, verdicts: _Verdicts
) -> tuple[int, tuple[Offer, ...]]:
    """Return the rounds that the final of a search will have, and the budget of a verdict where they are too few.

    They are no more than the first verdict needs: more time goes into longer samples.
    """
    time = search_time(plan, [cell for cell in cells if isinstance(cell, Cell)], feasibility)
    if time is None:
        return 0, ()
    rounds = min(FIRST_LOOK, time.rounds(plan.budget_s))
    needed_s = time.budget_s(FIRST_LOOK)
    if rounds == FIRST_LOOK or math.isinf(needed_s):
        return rounds, ()
    return rounds, (Offer(FIRST_LOOK, verdicts.smallest_ratio(FIRST_LOOK), needed_s),)


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
        seconds[cell.number] = num_turns[cell.number] * (sample + TURN_S) + num_loads * NUM_WARM_UPS * sample
        if cell.worker_key not in loaded:
            loaded.add(cell.worker_key)
            seconds[cell.number] += num_loads * guessed.load_s + (guessed.cold_load_s if plan.measures_cold else 0)
    return seconds
