"""Successive halving: chooses the settings to measure next, to find the best within a time budget.

Short samples of configurations spread over the grid come first. Round by round the better half stays, and the
neighbours of the leaders join it; all configurations of a round are measured within the same minutes. When the leaders
have no untried neighbour, or half the time is used, the best few and llama.cpp's default meet in a final of longer
samples, in as many interleaved rounds as the time allows. Verdicts rest on the final alone: a configuration chosen for
a high figure would otherwise benefit from the luck in that figure.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

import numpy as np

from engine.bench.planning.candidates import DEFAULT, DEFAULT_LABEL, ENOUGH, METRIC, MOST_FINALISTS
from engine.bench.planning.grid import Grid
from engine.bench.planning.plan import Cell, Plan
from engine.bench.planning.schedule import Turn
from engine.bench.planning.search_time import FINAL_SHARE, first_tried, num_streams, shortened
from engine.bench.running.effects import Effects, effects
from engine.samples import FLAGS, Samples, is_counted
from engine.stats import FIRST_LOOK
from engine.units import counted

NUM_LEADERS = 2
MARGIN = 0.25
"""Fraction by which a configuration measured once may be behind the best and still stay; divided by √n after n samples.
It is 2.5 standard deviations of the ratio of two samples that vary by 7 % each."""

FINAL_MARGIN = 0.15
FINAL_ROUNDS = 10
"""Rounds for which the length of the final's samples is chosen, two of them for warm-up."""

LEAST_GROWTH = 1.5
"""Samples that could only grow by a smaller factor stay as they are, as another length requires a warm-up."""

OVERHEAD = 1.1
"""Seconds of a round divided by the seconds of its samples."""

OVERRUN = 0.15
"""Fraction of the time that the final may take in addition where a verdict would otherwise lack rounds."""

SETTLED = 0.01
"""Standard error of a ratio below which more rounds would not change the choice."""


class Halving:
    """Strategy of the question "settings"; `cells` are those of `candidates`. Times are those of `clock`."""

    def __init__(
        self, plan: Plan, cells: Sequence[Cell], samples: Samples, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._plan = plan
        self._cells = cells
        self._metric = METRIC[plan.goal]
        self._grid = Grid(cells, plan.axes)
        self._clock = clock
        self._began = clock() - float(samples["duration_s"].sum())
        self._final = final_round(samples)
        self._finalists: list[int] = []
        self._length = 1.0
        self._round = int(samples["round"].max(initial=0)) - 1
        self._queue: deque[int] = deque()

    def next(self, samples: Samples, out: Collection[int]) -> Turn | None:
        """Return the next turn of this round, or the first of the next; None when time is up or all is settled."""
        while True:
            while self._queue:
                cell = self._queue.popleft()
                if cell not in out and not self._is_too_late(cell):
                    return Turn(cell, self._round, False)
            if not self._open_round(samples, out):
                return None

    def asked(self, turn: Turn) -> Cell:
        """Return the configuration with this stage's number of tokens."""
        return shortened(self._plan, self._cells[turn.cell], self._length)

    def review(self, samples: Samples) -> list[int]:
        """Return the positions of replaced samples.

        Before the final, a disturbed sample is taken once more; the first sample of the final replaces all earlier ones
        of the finalists.
        """
        newest = samples[-1]
        if self._final is not None:
            if np.sum(samples["round"] >= self._final) > 1:
                return []
            is_old = np.isin(samples["cell"], self._finalists) & (samples["round"] < self._final)
            return [int(position) for position in samples["position"][is_old & ~samples["is_replaced"]]]
        is_same = (samples["cell"] == newest["cell"]) & (samples["round"] == newest["round"])
        cell = int(newest["cell"])
        if newest["flag"] == FLAGS.index("clean") or np.sum(is_same) > 1 or self._is_too_late(cell):
            return []
        self._queue.appendleft(cell)
        return [int(newest["position"])]

    def ahead(self, samples: Samples, out: Collection[int]) -> list[int]:
        """Return the rest of the round, and the final as it would be now."""
        finalists = self._finalists
        num_rounds = max(FIRST_LOOK, self._plan.rounds)
        if self._final is None:
            ranked = [cell for cell in effects(samples, self._metric).ranked() if cell not in out]
            finalists = list(dict.fromkeys([DEFAULT, *ranked[:MOST_FINALISTS]]))
        else:
            num_rounds = max(0, num_rounds - (self._round - self._final + 1))
        return [cell for cell in (*self._queue, *(finalists * num_rounds)) if cell not in out]

    @property
    def left_s(self) -> float | None:
        """Seconds of the plan's time that are left; the final may end earlier, once the choice is settled."""
        return max(0.0, self._plan.budget_s - self._spent())

    @property
    def says(self) -> str:
        """Current stage."""
        if self._final is None:
            return f"Searching settings with short samples, round {max(self._round, 0) + 1}"
        others = [cell for cell in self._finalists if cell != DEFAULT]
        if not others:
            return f"Final: {DEFAULT_LABEL} alone, as no other setting was measured"
        best = "the best setting" if len(others) == 1 else f"the best {counted(len(others), 'setting')}"
        return f"Final: {DEFAULT_LABEL} against {best}" if DEFAULT in self._finalists else f"Final: {best}"

    # rounds

    def _open_round(self, samples: Samples, out: Collection[int]) -> bool:
        """Queue the configurations of the next round; return False at the end."""
        self._round += 1
        before = samples[samples["round"] < self._round]
        members = self._screened(before, out) if self._final is None else []
        if not members:
            if self._final is None:
                self._final = self._round
            if not self._finalists:
                self._choose_final(short_samples(samples, self._final), out)
            members = [cell for cell in self._finalists if cell not in out]
            if self._is_over(before, members):
                return False
        here = samples[(samples["round"] == self._round) & ~samples["is_replaced"]]
        left = [cell for cell in members if cell not in here["cell"]]
        self._queue.extend(self._in_order(left))
        return True

    def _screened(self, before: Samples, out: Collection[int]) -> list[int]:
        """Return the round's configurations: first spread over the grid, then the better half and leaders' neighbours.

        Empty when there is nothing more to try, or no more time.
        """
        if not len(before):
            return first_tried(self._plan, self._cells, out)
        if self._spent() > (1 - FINAL_SHARE) * self._plan.budget_s:
            return []
        found = effects(before, self._metric)
        ranked = [cell for cell in found.ranked() if cell not in out]
        num_before = len(np.unique(before["cell"][before["round"] == self._round - 1]))
        near = [cell for cell in ranked if found.behind(cell) <= MARGIN / math.sqrt(found.num_samples[cell])]
        kept = near[: max(NUM_LEADERS, num_before // 2)]
        beside = [cell for leader in kept[:NUM_LEADERS] for cell in self._grid.neighbours(leader)]
        new = [cell for cell in dict.fromkeys(beside) if cell not in before["cell"] and cell not in out]
        return list(dict.fromkeys([DEFAULT, *kept, *new])) if new else []

    def _in_order(self, cells: list[int]) -> list[int]:
        """Return `cells` shuffled, reversed in every second round; in the first by cost, as time may run out."""
        generator = np.random.default_rng((self._plan.seed, self._round // 2))
        shuffled: list[int] = generator.permutation(sorted(cells)).tolist()
        if self._round == 0:
            return sorted(shuffled, key=lambda cell: num_streams(self._cells[cell]))
        return shuffled[::-1] if self._round % 2 else shuffled

    def _is_too_late(self, cell: int) -> bool:
        is_used = self._spent() > (1 - FINAL_SHARE) * self._plan.budget_s
        return is_used and self._final is None and cell != DEFAULT

    def _spent(self) -> float:
        return self._clock() - self._began

    # the final

    def _choose_final(self, short: Samples, out: Collection[int]) -> None:
        """Choose the best, as many as can meet in the fewest rounds of a verdict, and the length of their samples."""
        final_s = FINAL_SHARE * self._plan.budget_s
        found = effects(short, self._metric)
        chosen = [cell for cell in self._best(short, found) if cell not in out and cell != DEFAULT]
        if DEFAULT not in out:
            chosen.insert(0, DEFAULT)
        seconds = {cell: OVERHEAD * float(short["duration_s"][short["cell"] == cell].mean()) for cell in chosen}
        while len(chosen) > 2 and FIRST_LOOK * sum(seconds[cell] for cell in chosen) > final_s:
            chosen.pop()
        self._finalists = chosen
        if chosen:
            length = final_s / (FINAL_ROUNDS * sum(seconds[cell] for cell in chosen))
            self._length = length if length >= LEAST_GROWTH else 1.0

    def _best(self, short: Samples, found: Effects) -> list[int]:
        """Return the configurations that may win, the likeliest first."""
        ranked = found.ranked()
        if self._plan.goal != "memory":
            return [cell for cell in ranked if found.behind(cell) <= FINAL_MARGIN][:MOST_FINALISTS]
        enough = [cell for cell in ranked[1:] if found.behind(cell) <= FINAL_MARGIN - (1 - ENOUGH)]
        enough.sort(key=lambda cell: median_of(short, cell, "pss_bytes"))
        return [*ranked[:1], *enough][:MOST_FINALISTS]

    def _is_over(self, before: Samples, members: list[int]) -> bool:
        """Return True when no further round fits the time, or the rounds so far have settled the choice."""
        rounds = before[before["round"] >= self._final]
        if not members or not len(rounds):
            return not members
        left = self._plan.budget_s - self._spent()
        needed = OVERHEAD * float(rounds["duration_s"].sum()) / len(np.unique(rounds["round"]))
        num_common = len(common_rounds(rounds, members))
        if num_common < FIRST_LOOK:
            return needed > left + OVERRUN * self._plan.budget_s
        return needed > left or (num_common >= self._plan.rounds and is_settled(effects(rounds, self._metric)))


def final_round(samples: Samples) -> int | None:
    """Return the round in which the final began; None before it.

    Derived from the default, whose samples of earlier rounds no longer count from then on.
    """
    default = samples[samples["cell"] == DEFAULT]
    counting = default["round"][~default["is_replaced"]]
    if not len(default):
        return None
    return int(counting.min() if len(counting) else samples["round"].max()) or None


def short_samples(samples: Samples, final: int) -> Samples:
    """Return the samples before the final as they counted then: the last of each configuration and round."""
    short = samples[samples["round"] < final]
    last = {(int(sample["cell"]), int(sample["round"])): place for place, sample in enumerate(short)}
    kept = short[sorted(last.values())]
    kept["is_replaced"] = False
    return kept


def common_rounds(samples: Samples, cells: Sequence[int]) -> set[int]:
    """Return the rounds in which each of `cells` has a counted sample."""
    counted = samples[is_counted(samples)]
    return set.intersection(*(set(counted["round"][counted["cell"] == cell].tolist()) for cell in cells))


def median_of(samples: Samples, cell: int, metric: str) -> float:
    """Return the median of a metric over the counted samples of a configuration; infinite where it was not measured."""
    values = samples[metric][is_counted(samples) & (samples["cell"] == cell)]
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else math.inf


def is_settled(found: Effects) -> bool:
    """Return True when the best is known: it leads by two standard errors, or any other would do as well."""
    leader, *others = found.ranked()
    for other in others:
        lead = found.values[leader] - found.values[other]
        error = found.noise * math.sqrt(1 / found.num_samples[leader] + 1 / found.num_samples[other])
        if not (lead > 2 * error or error <= SETTLED):
            return False
    return True
