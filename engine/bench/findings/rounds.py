"""The counted samples of a run by cell and round, and their medians; fast for 100,000 samples of 200 cells."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.samples import FLAGS, METRICS, Samples, counted
from engine.stats import Interval, group_median_intervals, group_medians

APART = ("llama-bench", "log")
"""Origins of runs whose cells were measured one after the other, not in common rounds."""


def round_s(samples: Samples) -> float:
    """Seconds from the start of a round to the start of the next, the median; NaN before there are two rounds."""
    kept = samples[~samples["is_replaced"]]
    _, group = np.unique(kept["round"], return_inverse=True)
    starts = np.full(group.max(initial=-1) + 1, math.inf)
    np.minimum.at(starts, group, kept["started_at"])
    return float(np.median(np.diff(np.sort(starts)))) if len(starts) > 1 else math.nan


class Rounds(NamedTuple):
    """Counted samples, and which (cell, round) each belongs to; cells and rounds: of each such group, in order."""

    samples: Samples
    group: npt.NDArray[np.intp]
    cells: npt.NDArray[np.int64]
    rounds: npt.NDArray[np.int64]
    num_counted: dict[int, int]
    num_flagged: dict[int, int]

    @classmethod
    def of(cls, samples: Samples) -> "Rounds":
        order = np.lexsort((samples["round"], samples["cell"]))
        ordered = samples[order]
        parts = np.split(ordered, np.flatnonzero(np.diff(ordered["cell"])) + 1) if len(ordered) else []
        used = [counted(part) for part in parts]
        kept = np.concatenate(used) if used else samples
        names = [int(part["cell"][0]) for part in parts]
        key = kept["cell"].astype(np.int64) << 32 | kept["round"]
        keys, group = np.unique(key, return_inverse=True)
        flagged = [int(((part["flag"] != FLAGS.index("clean")) | part["is_replaced"]).sum()) for part in parts]
        return cls(
            kept,
            group,
            keys >> 32,
            keys & 0xFFFFFFFF,
            dict(zip(names, map(len, used), strict=True)),
            dict(zip(names, flagged, strict=True)),
        )

    def medians(self, metric: str) -> npt.NDArray[np.float64]:
        """Of each group, NaN where nothing was measured."""
        return group_medians(self.samples[metric], self.group, len(self.cells))

    def intervals(self) -> dict[int, dict[str, Interval]]:
        """Over the rounds of each cell, for the metrics that it has."""
        numbers, cell = np.unique(self.cells, return_inverse=True)
        found: dict[int, dict[str, Interval]] = {number: {} for number in numbers.tolist()}
        for metric in METRICS:
            intervals = group_median_intervals(self.medians(metric.name), cell, len(numbers))
            for number, interval in zip(found, intervals, strict=True):
                if interval.num:
                    found[number][metric.name] = interval
        return found

    def by_round(self, cell: int, metric: str) -> dict[int, float]:
        """Rounds of one cell with its median in each."""
        return self.by_cell(metric).get(cell, {})

    def by_cell(self, metric: str) -> dict[int, dict[int, float]]:
        """The same of every cell."""
        found: dict[int, dict[int, float]] = {}
        columns = (self.cells.tolist(), self.rounds.tolist(), self.medians(metric).tolist())
        for cell, number, value in zip(*columns, strict=True):
            if math.isfinite(value):
                found.setdefault(cell, {})[number] = value
        return found
