"""`python -m tests.simulations.verdicts [--trials N]`: false differences and power of verdicts, a row a kind of noise.

A trial is a plan from its first look to its last: a person runs it and adds rounds up to the next look as long as a
configuration has no verdict. A false difference is "faster" or "slower" of any configuration that equals the control,
at any of the looks. A search chooses its finalists in rounds that its verdicts do not rest on. Where one configuration
is truly faster ("partial null") the power is how often it was found by the end, and the false differences are those of
the others.
"""

import argparse
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import bdtri

from engine.bench.planning.candidates import MOST_FINALISTS
from engine.stats import FIRST_LOOK, max_t, rounds_at
from engine.stats.evidence import FEWEST_IN_FAMILY
from engine.stats.looks import share_of

Floats = npt.NDArray[np.float64]
ALPHA, NOISE_SD, EFFECT = 0.05, 0.05, 0.10
MOST_LOOKS = 9
"""The first nine looks, up to 128 rounds, spend 0.89 of alpha. Whoever skips some looks spends less."""
SEARCHED = 2
"""Rounds of a search before its final."""
NUM_FLIPS = 1_999
"""A tenth of those of a real verdict, as ten thousand plans are judged here."""

Draw = Callable[[np.random.Generator, int, int], Floats]


class Case(NamedTuple):
    """A kind of noise: `draw` gives log figures, shape (rounds, 1 + configurations), the control first.

    num_finalists: of a search, which goes on with those alone that were best in two rounds before; 0 keeps all.
    """

    name: str
    draw: Draw
    num_configurations: int = 8
    is_partial: bool = False
    num_finalists: int = 0


class Outcome(NamedTuple):
    """Shares of trials, and the upper 99 % bound (Clopper and Pearson) of the false ones."""

    wrong: float
    bound: float
    found: float
    rounds: float


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


CASES = (
    Case("normal", normal),
    Case("normal, one pair", normal, 1),
    Case("normal, 32 configurations", normal, 32),
    Case("normal, one is 10 % faster", normal, is_partial=True),
    Case("skewed alike", skewed),
    Case("skewed alike, one is 10 % faster", skewed, is_partial=True),
    Case("unequal spreads", unequal),
    Case("unequal spreads, one is 10 % faster", unequal, is_partial=True),
    Case("drift from round to round", drifting),
    Case("whole rounds hit", rounds_hit),
    Case("whole rounds hit, one is 10 % faster", rounds_hit, is_partial=True),
    Case("rounds missing", missing),
    Case("a search's final", normal, 36, num_finalists=MOST_FINALISTS),
    Case("a search's final, whole rounds hit", rounds_hit, 36, num_finalists=MOST_FINALISTS),
    Case("control alone skewed (*)", skewed_control),
    Case("control alone skewed, one pair (*)", skewed_control, 1),
)


def simulate(case: Case, num_trials: int, seed: int = 0) -> Outcome:
    """Run plans of one kind to the end."""
    random = np.random.default_rng(seed)
    wrong = found = total = 0
    for _ in range(num_trials):
        figures = case.draw(random, SEARCHED + rounds_at(MOST_LOOKS - 1), 1 + case.num_configurations)
        before, differences = np.split(figures[:, 1:] - figures[:, :1], [SEARCHED])
        if case.num_finalists:
            differences = differences[:, np.argsort(before.sum(0))[-case.num_finalists :]]
        if case.is_partial:
            differences[:, 0] += math.log1p(EFFECT)
        is_false, is_found, rounds = _follow(differences, case.is_partial)
        wrong, found, total = wrong + is_false, found + is_found, total + rounds
    bound = float(bdtri(wrong, num_trials, 0.01)) if wrong < num_trials else 1.0
    return Outcome(wrong / num_trials, bound, found / num_trials, total / num_trials)


def _follow(differences: Floats, is_partial: bool) -> tuple[bool, bool, int]:
    """Look, add rounds, look again, as long as a configuration has no verdict."""
    is_told = np.zeros(differences.shape[1], np.bool_)
    rounds = FIRST_LOOK
    for look in range(MOST_LOOKS):
        rounds = rounds_at(look)
        early = differences[:rounds]
        tested = np.flatnonzero((~np.isnan(early)).sum(0) >= FEWEST_IN_FAMILY)
        is_told[tested] |= max_t(early[:, tested], seed=rounds, num_flips=NUM_FLIPS) <= ALPHA * share_of(look)
        if is_told.all():
            break
    return bool(is_told[1 if is_partial else 0 :].any()), bool(is_partial and is_told[0]), rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--only", default="", help="kinds whose name begins so")
    given = parser.parse_args()
    print(f"{given.trials:,} trials a row, looks at {', '.join(str(rounds_at(look)) for look in range(MOST_LOOKS))}")
    print(f"{'kind of noise':42} {'configurations':>14} {'false':>7} {'99 % bound':>10} {'found':>7}")
    for case in CASES:
        if case.name.startswith(given.only):
            outcome = simulate(case, given.trials)
            found = f"{outcome.found:7.3f}" if case.is_partial else "      -"
            row = f"{case.name:42} {case.num_configurations:14} {outcome.wrong:7.4f} {outcome.bound:10.4f} {found}"
            print(row, flush=True)
    print("(*) the signs of the differences are not exchangeable then, which every sign-flip test presumes")


if __name__ == "__main__":
    main()
