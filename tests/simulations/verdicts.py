"""False differences and power of verdicts, a row a kind of noise: `python -m tests.simulations.verdicts [--trials N]`.

A trial is a plan from its first look to its last: a person runs it and adds rounds up to the next look as long as a
configuration has no verdict. A false difference is "faster" or "slower" of any configuration that equals the control,
at any of the looks. A search chooses its finalists in rounds that its verdicts do not rest on. Where one configuration
is truly faster ("partial null") the power is how often it was found by the end, and the false differences are those of
the others. Rounds and looks are the means until it was found, else of the whole plan. A trial takes some 20 ms.
"""

import argparse
import math
import os
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing import get_context
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from scipy.special import bdtri

from engine.bench.planning.candidates import MOST_FINALISTS
from engine.stats import evidence, max_t, rounds_at
from engine.stats.evidence import FEWEST_IN_FAMILY, Pair, paired
from engine.stats.sign_flips import SignFlips
from engine.units import percent

Floats = npt.NDArray[np.float64]
ALPHA, NOISE_SD = 0.05, 0.05
EFFECTS = (0.03, 0.05, 0.10, 0.30)
MOST_LOOKS = 13
"""The first thirteen looks, up to 512 rounds, spend 0.92 of alpha. Whoever skips some looks spends less."""
SEARCHED = 2
"""Rounds of a search before its final."""
NUM_JOBS = len(os.sched_getaffinity(0))
NUM_FLIPS = 3_999
"""A fifth of those of a real verdict, as ten thousand plans are judged here; enough for the share of the last look."""
FIRST_FLIPS, FAR_P = 511, 0.05
"""Flips that are tried first: where even the smallest of their p-values is over FAR_P, a look decides nothing."""

Draw = Callable[[np.random.Generator, int, int], Floats]


class Case(NamedTuple):
    """A kind of noise: `draw` gives log figures, shape (rounds, 1 + configurations), the control first.

    effect: by how much the first configuration is faster than the control, which all others equal. num_finalists: of a
    search, which goes on with those alone that were best in two rounds before; 0 keeps all.
    """

    kind: str
    draw: Draw
    num_configurations: int = 8
    effect: float = 0.0
    num_finalists: int = 0

    @property
    def name(self) -> str:
        """The kind of noise, and the effect if there is one."""
        return f"{self.kind}, one is {percent(self.effect)} faster" if self.effect else self.kind


class Plan(NamedTuple):
    """What came of one plan.

    is_false, is_found: whether a configuration without an effect, and the one with it, got a verdict. rounds, looks:
    until it was found, else of the whole plan.
    """

    is_false: bool
    is_found: bool
    rounds: int
    looks: int


class Outcome(NamedTuple):
    """Shares of trials, the upper 99 % bound (Clopper and Pearson) of the false ones, and mean rounds and looks."""

    wrong: float
    bound: float
    found: float
    rounds: float
    looks: float


def normal(random: np.random.Generator, rounds: int, columns: int) -> Floats:
    return random.normal(0, NOISE_SD, (rounds, columns))


def skewed(random: np.random.Generator, rounds: int, columns: int) -> Floats:
    """Of one shape in all columns, so that differences are symmetric."""
    return NOISE_SD * (random.exponential(1, (rounds, columns)) - 1)


def skewed_control(random: np.random.Generator, rounds: int, columns: int) -> Floats:
    figures = normal(random, rounds, columns)
    figures[:, 0] = NOISE_SD * (random.exponential(1, rounds) - 1)
    return figures


def unequal(random: np.random.Generator, rounds: int, columns: int) -> Floats:
    """Standard deviations from a fifth to five times the usual one."""
    return normal(random, rounds, columns) * np.geomspace(0.2, 5, columns)


def drifting(random: np.random.Generator, rounds: int, columns: int) -> Floats:
    return normal(random, rounds, columns) + np.cumsum(random.normal(0, 0.1, (rounds, 1)), axis=0)


def rounds_hit(random: np.random.Generator, rounds: int, columns: int) -> Floats:
    """In one round of five every configuration loses up to nine tenths, each its own part."""
    is_hit = random.random((rounds, 1)) < 0.2
    return normal(random, rounds, columns) - is_hit * random.exponential(0.5, (rounds, columns))


def missing(random: np.random.Generator, rounds: int, columns: int) -> Floats:
    figures = normal(random, rounds, columns)
    figures[:, 1:][random.random((rounds, columns - 1)) < 0.15] = math.nan
    return figures


SEARCH, SEARCH_HIT = "a search's final", "a search's final, whole rounds hit"
CASES = (
    Case("normal", normal),
    Case("normal, one pair", normal, 1),
    Case("normal, 32 configurations", normal, 32),
    *(Case("normal", normal, effect=effect) for effect in EFFECTS),
    Case("skewed alike", skewed),
    Case("skewed alike", skewed, effect=0.10),
    Case("unequal spreads", unequal),
    Case("unequal spreads", unequal, effect=0.10),
    Case("drift from round to round", drifting),
    Case("drift from round to round", drifting, effect=0.10),
    Case("whole rounds hit", rounds_hit),
    *(Case("whole rounds hit", rounds_hit, effect=effect) for effect in EFFECTS),
    Case("rounds missing", missing),
    Case("rounds missing", missing, effect=0.10),
    Case(SEARCH, normal, 36, num_finalists=MOST_FINALISTS),
    Case(SEARCH, normal, 36, effect=0.10, num_finalists=MOST_FINALISTS),
    Case(SEARCH_HIT, rounds_hit, 36, num_finalists=MOST_FINALISTS),
    Case(SEARCH_HIT, rounds_hit, 36, effect=0.10, num_finalists=MOST_FINALISTS),
    Case("control alone skewed (*)", skewed_control),
    Case("control alone skewed, one pair (*)", skewed_control, 1),
)


def simulate(case: Case, num_trials: int, seed: int = 0) -> Outcome:
    """Run plans of one kind to the end, in as many processes as there are cores."""
    shares = [num_trials // NUM_JOBS + (number < num_trials % NUM_JOBS) for number in range(NUM_JOBS)]
    with ProcessPoolExecutor(NUM_JOBS, get_context("fork")) as jobs:
        running = [jobs.submit(run_plans, case, num, (seed, number)) for number, num in enumerate(shares)]
        plans = [plan for done in running for plan in done.result()]
    wrong, found, rounds, looks = (sum(column) for column in zip(*plans, strict=True))
    bound = float(bdtri(wrong, num_trials, 0.01)) if wrong < num_trials else 1.0
    return Outcome(wrong / num_trials, bound, found / num_trials, rounds / num_trials, looks / num_trials)


def run_plans(case: Case, num_plans: int, seed: tuple[int, int]) -> list[Plan]:
    """Run a share of the plans of one kind."""
    random = np.random.default_rng(seed)
    with quicker():
        return [run_plan(case, random) for _plan in range(num_plans)]


def run_plan(case: Case, random: np.random.Generator) -> Plan:
    """Look, add rounds, look again, as long as a configuration has no verdict."""
    figures = case.draw(random, SEARCHED + rounds_at(MOST_LOOKS - 1), 1 + case.num_configurations)
    figures[:, 1] += math.log1p(case.effect)
    before, figures = np.split(figures, [SEARCHED])
    numbers = np.arange(1, figures.shape[1])
    if case.num_finalists:
        numbers = numbers[np.argsort(before[:, 1:].sum(0))[-case.num_finalists :]]
    has_effect = (numbers == 1) & (case.effect > 0)
    is_decided, looks, pairs = np.zeros(len(numbers), np.bool_), 0, list[Pair]()
    for look in range(MOST_LOOKS):
        looks += not is_decided[has_effect].any()
        if not pairs:
            if not may_decide(figures[: rounds_at(look), numbers] - figures[: rounds_at(look), :1]):
                continue
            pairs = [(by_round(figures[:, number]), by_round(figures[:, 0])) for number in numbers.tolist()]
        found = paired([until(rounds_at(look), pair) for pair in pairs], ALPHA)
        is_decided |= [one.p_value <= ALPHA and one.is_one_way for one in found]
        if is_decided.all():
            break
    return Plan(bool(is_decided[~has_effect].any()), bool(is_decided[has_effect].any()), rounds_at(looks - 1), looks)


def may_decide(differences: Floats) -> bool:
    """Return whether a look at these rounds may give the first verdict, by a few flips only: most looks give none."""
    in_family = (~np.isnan(differences)).sum(0) >= FEWEST_IN_FAMILY
    return bool(max_t(differences[:, in_family], num_flips=FIRST_FLIPS).min(initial=1.0) <= FAR_P)


def by_round(logs: Floats) -> dict[int, float]:
    """The figures of the rounds that are there."""
    return {number: math.exp(log) for number, log in enumerate(logs.tolist()) if not math.isnan(log)}


def until(num_rounds: int, pair: Pair) -> Pair:
    """The pair as it was after so many rounds."""
    ours, theirs = (dict(list(side.items())[: bisect_left(list(side), num_rounds)]) for side in pair)
    return ours, theirs


@contextmanager
def quicker() -> Iterator[None]:
    """Compute each test of the real procedure only once, with fewer flips, and no intervals: verdicts need none.

    The flips for a number of rounds, which are the same each time, are drawn only once.
    """
    procedure = sys.modules[max_t.__module__]
    draw_signs = procedure._signs

    @lru_cache(maxsize=2 * MOST_LOOKS)
    def signs(num_rounds: int, seed: int, num_flips: int) -> tuple[Floats, ...]:
        return tuple(draw_signs(num_rounds, seed, num_flips))

    @lru_cache(maxsize=4 * MOST_LOOKS)
    def tested(num_rounds: int, differences: bytes) -> Floats:
        return max_t(np.frombuffer(differences).reshape(num_rounds, -1), num_flips=NUM_FLIPS)

    def without_intervals(columns: Floats, _is_there: Floats, **_options: float) -> SignFlips:
        return SignFlips(*np.full((3, columns.shape[1]), math.nan))

    def of_evidence(given: Floats) -> Floats:
        return tested(len(given), given.tobytes())

    with (
        patch.object(procedure, "_signs", signs),
        patch.multiple(evidence, max_t=of_evidence, flip_signs=without_intervals),
    ):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000, help="plans of each kind (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="kinds whose name begins so")
    given = parser.parse_args()
    print(f"{given.trials:,} trials a row, looks at {', '.join(str(rounds_at(look)) for look in range(MOST_LOOKS))}")
    print(f"{'kind of noise':54} {'conf.':>5} {'rounds':>6} {'looks':>5} {'false':>7} {'99 % bound':>10} {'found':>6}")
    for case in CASES:
        if case.name.startswith(given.only):
            print(row(case, simulate(case, given.trials)), flush=True)
    print("(*) the signs of the differences are not exchangeable then, which every sign-flip test presumes")


def row(case: Case, outcome: Outcome) -> str:
    """The line of a table."""
    found = f"{outcome.found:6.3f}" if case.effect else f"{'-':>6}"
    effort = f"{case.num_configurations:5} {outcome.rounds:6.0f} {outcome.looks:5.1f}"
    return f"{case.name:54} {effort} {outcome.wrong:7.4f} {outcome.bound:10.4f} {found}"


if __name__ == "__main__":
    main()
