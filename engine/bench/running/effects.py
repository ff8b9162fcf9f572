"""Configuration effects: compares configurations, separated from rounds in which the machine was faster or slower."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.samples import METRICS_BY_NAME, Samples, is_counted

_OUTLIER = 4.0
_LEAST_OUTLIER = 0.1


@dataclass(frozen=True)
class Effects:
    """Logarithmic effect of each configuration, comparable with each other; higher is better, whatever the metric.

    noise: standard deviation of one sample, as a fraction of its value; NaN where nothing was measured twice.
    num_samples: by configuration.
    """

    values: dict[int, float]
    num_samples: dict[int, int]
    noise: float

    def ranked(self) -> list[int]:
        """Return the configurations, the best first."""
        return sorted(self.values, key=lambda cell: -self.values[cell])

    def behind(self, cell: int) -> float:
        """Return the fraction by which `cell` is behind the best.

        0.05 is 5 % less where more is better, or 5 % more where less is better.
        """
        return 1 - math.exp(self.values[cell] - max(self.values.values()))


def effects(samples: Samples, metric: str) -> Effects:
    """Fit log(metric) = configuration + round by least squares over the counted samples.

    Configurations need not share all rounds: those that do tie the rounds together. A sample far from the fit is
    dropped and the rest fitted again, unless its configuration has no other.
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
    """Return the effects by configuration, and the residuals after configuration and round effects."""
    cells, cell_of = np.unique(samples["cell"], return_inverse=True)
    rounds, round_of = np.unique(samples["round"], return_inverse=True)
    design = np.zeros((len(samples), len(cells) + len(rounds)))
    rows = np.arange(len(samples))
    design[rows, cell_of] = 1
    design[rows, len(cells) + round_of] = 1
    found = np.linalg.lstsq(design, logs, rcond=None)[0]
    return dict(zip(cells.tolist(), found[: len(cells)].tolist(), strict=True)), logs - design @ found
