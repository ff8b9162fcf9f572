"""Intervals of medians, verdicts by rounds, and how many rounds a verdict needs. Only numpy and scipy."""

from engine.stats.intervals import Interval, group_median_intervals, group_medians, median_interval
from engine.stats.power import FEWEST_ROUNDS, fewest_rounds, noise_of, rounds_needed, smallest_ratio
from engine.stats.sign_flips import sign_flip_p
from engine.stats.verdicts import Verdict, compare, compare_independent, compare_many, compare_spread, holm

__all__ = [
    "FEWEST_ROUNDS",
    "Interval",
    "Verdict",
    "compare",
    "compare_independent",
    "compare_many",
    "compare_spread",
    "fewest_rounds",
    "group_median_intervals",
    "group_medians",
    "holm",
    "median_interval",
    "noise_of",
    "rounds_needed",
    "sign_flip_p",
    "smallest_ratio",
]
