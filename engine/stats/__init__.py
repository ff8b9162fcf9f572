"""Statistics: intervals of medians, verdicts by rounds, and numbers of rounds needed. Uses only numpy and scipy."""

from engine.stats.evidence import holm
from engine.stats.intervals import Interval, group_median_intervals, group_medians, median_interval
from engine.stats.looks import FIRST_LOOK, rounds_at
from engine.stats.max_t import max_t
from engine.stats.power import noise_of, rounds_needed, smallest_ratio
from engine.stats.sign_flips import sign_flip_p
from engine.stats.verdicts import Verdict, compare, compare_independent, compare_many, compare_spread

__all__ = [
    "FIRST_LOOK",
    "Interval",
    "Verdict",
    "compare",
    "compare_independent",
    "compare_many",
    "compare_spread",
    "group_median_intervals",
    "group_medians",
    "holm",
    "max_t",
    "median_interval",
    "noise_of",
    "rounds_at",
    "rounds_needed",
    "sign_flip_p",
    "smallest_ratio",
]
