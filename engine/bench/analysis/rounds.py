"""Rounds: a run's counted samples by configuration and round, and their medians.

Fast for 100,000 samples of 200 configurations.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.samples import FLAGS, METRICS, Samples, is_counted
from engine.stats import Interval, group_median_intervals, group_medians

APART = ("llama-bench", "log")
"""Origins of runs whose configurations were measured sequentially, not in common rounds."""


def round_s(samples: Samples) -> float:
    """Return the median seconds from the start of a round to the start of the next; NaN for fewer than two rounds."""
    kept = samples[~samples["is_replaced"]]
    _, group = np.unique(kept["round"], return_inverse=True)
    starts = np.full(group.max(initial=-1) + 1, math.inf)
    np.minimum.at(starts, group, kept["started_at"])
    return float(np.median(np.diff(np.sort(starts)))) if len(starts) > 1 else math.nan


class Rounds(NamedTuple):
    """Counted samples with the (configuration, round) group of each.

    group: index of each sample's group; cells, rounds: configuration and round of each group, in order; num_counted,
    num_disturbed, num_replaced: numbers of samples by configuration, those disturbed without replaced ones.
    """

    samples: Samples
    group: npt.NDArray[np.intp]
    cells: npt.NDArray[np.int64]
    rounds: npt.NDArray[np.int64]
    num_counted: dict[int, int]
    num_disturbed: dict[int, int]
    num_replaced: dict[int, int]

    @classmethod
    def of(cls, samples: Samples) -> "Rounds":
        """Group the samples of one run."""
        ordered = samples[np.lexsort((samples["round"], samples["cell"]))]
        kept = ordered[is_counted(ordered)]
        keys, group = np.unique(kept["cell"].astype(np.int64) << 32 | kept["round"], return_inverse=True)
        is_replaced = ordered["is_replaced"]
        is_disturbed = (ordered["flag"] != FLAGS.index("clean")) & ~is_replaced
        numbers = np.unique(ordered["cell"]).tolist()
        cells = (kept["cell"], ordered["cell"][is_disturbed], ordered["cell"][is_replaced])
        return cls(kept, group, keys >> 32, keys & 0xFFFFFFFF, *(_num_by_cell(each, numbers) for each in cells))

    def medians(self, metric: str) -> npt.NDArray[np.float64]:
        """Return the median of each group, NaN where nothing was measured."""
        return group_medians(self.samples[metric], self.group, len(self.cells))

    def intervals(self) -> dict[int, dict[str, Interval]]:
        """Return the median over rounds with its interval, by configuration, for each metric that it has."""
        numbers, cell = np.unique(self.cells, return_inverse=True)
        found: dict[int, dict[str, Interval]] = {number: {} for number in numbers.tolist()}
        for metric in METRICS:
            intervals = group_median_intervals(self.medians(metric.name), cell, len(numbers))
            for number, interval in zip(found, intervals, strict=True):
                if interval.num:
                    found[number][metric.name] = interval
        return found

    def by_round(self, cell: int, metric: str) -> dict[int, float]:
        """Return the medians of one configuration by round."""
        return self.by_cell(metric).get(cell, {})

    def by_cell(self, metric: str) -> dict[int, dict[int, float]]:
        """Return the medians of every configuration by round."""
        found: dict[int, dict[int, float]] = {}
        columns = (self.cells.tolist(), self.rounds.tolist(), self.medians(metric).tolist())
        for cell, number, value in zip(*columns, strict=True):
            if math.isfinite(value):
                found.setdefault(cell, {})[number] = value
        return found


def _num_by_cell(cells: npt.NDArray[np.int32], numbers: Sequence[int]) -> dict[int, int]:
    """Count how often each of these configuration numbers occurs."""
    found, num = np.unique(cells, return_counts=True)
    return dict.fromkeys(numbers, 0) | dict(zip(found.tolist(), num.tolist(), strict=True))
