"""Which of several cells is better, told apart from the rounds in which the machine itself was faster or slower."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.samples import METRICS_BY_NAME, Samples, is_counted

_OUTLIER = 4.0
_LEAST_OUTLIER = 0.1


@dataclass(frozen=True)
class Effects:
    """Logarithms by cell of how good it is, comparable among themselves; more is better, whatever the metric.

    noise: standard deviation of one sample, as a part of its value; NaN where nothing was measured twice.
    num_samples: by cell.
    """

    values: dict[int, float]
    num_samples: dict[int, int]
    noise: float

    def ranked(self) -> list[int]:
        """Cells, the best first."""
        return sorted(self.values, key=lambda cell: -self.values[cell])

    def behind(self, cell: int) -> float:
        """How much `cell` is behind the best, as a part: 0.05 is 5 % less of what is more, or more of what is less."""
        return 1 - math.exp(self.values[cell] - max(self.values.values()))


def effects(samples: Samples, metric: str) -> Effects:
    """Fit log(metric) = cell + round by least squares over the counted samples.

    Cells need not have been in the same rounds: those that were tie the rounds together. A sample far from the fit is
    left out and the rest fitted again, unless it is all that its cell has.
    """
    usable = samples[is_counted(samples)]
    usable = usable[np.isfinite(usable[metric]) & (usable[metric] > 0)]
    if not len(usable):
        return Effects({}, {}, math.nan)
    sign = -1.0 if METRICS_BY_NAME[metric].is_more_better is False else 1.0
    logs = sign * np.log(usable[metric])
    fit, residuals = _fit(usable, logs)
    spread = 1.4826 * float(np.median(np.abs(residuals)))
    kept = np.abs(residuals) <= max(_OUTLIER * spread, _LEAST_OUTLIER)
    kept |= ~np.isin(usable["cell"], usable["cell"][kept])
    if not kept.all():
        usable, logs = usable[kept], logs[kept]
        fit, residuals = _fit(usable, logs)
    names, num = np.unique(usable["cell"], return_counts=True)
    freedom = len(usable) - len(names) - len(np.unique(usable["round"])) + 1
    noise = math.sqrt(float(residuals @ residuals) / freedom) if freedom > 0 else math.nan
    return Effects(fit, dict(zip(names.tolist(), num.tolist(), strict=True)), noise)


def _fit(samples: Samples, logs: npt.NDArray[np.float64]) -> tuple[dict[int, float], npt.NDArray[np.float64]]:
    """Effects by cell, and what they and those of the rounds leave unexplained."""
    cells, cell_of = np.unique(samples["cell"], return_inverse=True)
    rounds, round_of = np.unique(samples["round"], return_inverse=True)
    design = np.zeros((len(samples), len(cells) + len(rounds)))
    rows = np.arange(len(samples))
    design[rows, cell_of] = 1
    design[rows, len(cells) + round_of] = 1
    found = np.linalg.lstsq(design, logs, rcond=None)[0]
    return dict(zip(cells.tolist(), found[: len(cells)].tolist(), strict=True)), logs - design @ found
