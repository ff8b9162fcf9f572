"""Time of a search for settings: what its first samples and its final take, and the budget that allows a verdict."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from engine.bench.planning.candidates import DEFAULT
from engine.bench.planning.feasibility import Feasibility
from engine.bench.planning.grid import Grid
from engine.bench.planning.guesses import NUM_WARM_UPS, TURN_S, guess
from engine.bench.planning.plan import MOST_BUDGET_S, Cell, Plan

MOST_COARSE = 12
"""Most configurations besides the default that the search begins with."""

SHORT_TOKENS = 6
"""Tokens generated in the samples before the final."""

SHORT_PROMPT = 2
FINAL_SHARE = 0.5
"""Fraction of the time reserved for the final."""

_BUDGET_STEP_S = 30.0


class SearchTime(NamedTuple):
    """Seconds of the shortest search that can compare anything: of llama.cpp's default and the first other setting.

    default_s, other_s: until the first sample of each, with loading and warm-up; round_s: one round of both.
    """

    default_s: float
    other_s: float
    round_s: float

    def rounds(self, budget_s: float) -> int:
        """Return how many rounds of the final fit; 0 also where no other setting is tried before the final begins."""
        if self.default_s > (1 - FINAL_SHARE) * budget_s:
            return 0
        final_s = min(FINAL_SHARE * budget_s, budget_s - self.default_s - self.other_s)
        return max(0, math.floor(final_s / self.round_s))

    def budget_s(self, num_rounds: int) -> float:
        """Return the whole budget in which so many rounds of the final fit; inf beyond the longest allowed."""
        final_s = num_rounds * self.round_s
        least = max(self.default_s / (1 - FINAL_SHARE), self.default_s + self.other_s + final_s, final_s / FINAL_SHARE)
        return whole_budget_s(least)


def search_time(plan: Plan, cells: Sequence[Cell], feasibility: Feasibility) -> SearchTime | None:
    """Return the guessed time of a search; None where the default or everything else cannot run."""
    out = [cell.number for cell in cells if cell.refusal]
    order = [number for number in first_tried(plan, cells, out) if number != DEFAULT]
    if DEFAULT in out or not order:
        return None
    firsts, samples = [], []
    for number in (DEFAULT, order[0]):
        found = guess(shortened(plan, cells[number]), feasibility)
        if found is None:
            return None
        load_s = found.load_s + (found.cold_load_s if plan.measures_cold else 0)
        samples.append(found.sample_s + TURN_S)
        firsts.append(load_s + NUM_WARM_UPS * found.sample_s + samples[-1])
    return SearchTime(firsts[0], firsts[1], sum(samples))


def first_tried(plan: Plan, cells: Sequence[Cell], out: Collection[int] = ()) -> list[int]:
    """Return the configurations that a search begins with, those with the fewest streams first, as time may run out."""
    found = dict.fromkeys([DEFAULT, *Grid(cells, plan.axes).coarse(MOST_COARSE, out)])
    return sorted(found, key=lambda number: num_streams(cells[number]))


def num_streams(cell: Cell) -> int:
    """Return how many sequences a configuration generates at once."""
    return cell.pool.instances * cell.pool.parallel


def shortened(plan: Plan, cell: Cell, length: float = 1.0) -> Cell:
    """Return a configuration with the few tokens of an early sample, `length` times as many in the final.

    A prompt keeps its length where that matters.
    """
    full = cell.workload
    num_generated = min(full.num_generated, math.floor(SHORT_TOKENS * length))
    num_prompt = min(full.num_prompt, math.floor(SHORT_PROMPT * length))
    if plan.goal == "first-token" or full.depth:
        num_prompt = full.num_prompt
    return replace(cell, workload=replace(full, num_generated=num_generated, num_prompt=num_prompt))


def whole_budget_s(seconds: float) -> float:
    """Round a budget up to half minutes, as the Benchmark page takes it; inf beyond the longest allowed."""
    whole = _BUDGET_STEP_S * math.ceil(seconds / _BUDGET_STEP_S)
    return whole if whole <= MOST_BUDGET_S else math.inf
