"""Scatter: how far samples vary by themselves, while nothing else used the machine."""

import math
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.samples import FLAGS, Flag, Samples, is_counted
from engine.units import counted, percent

Kind = Literal["steady", "stray", "disturbed", "throttled", "cold", "replaced"]
KINDS: tuple[Kind, ...] = ("steady", "stray", "disturbed", "throttled", "cold", "replaced")
"""Kinds of samples. steady, stray: taken while nothing else used the machine, and near the median of their
configuration or far from it; disturbed, throttled, cold: something outside the configuration slowed them, see FLAGS;
replaced: measured again, as the control had drifted."""

STRAY_SHARE = 0.10
"""Distance from the median of its configuration from which on an undisturbed sample is called stray."""

_OF_FLAGS: dict[Flag, Kind] = {"contended": "disturbed", "throttled": "throttled", "cold": "cold"}

_OF_MAD = 1.4826
"""Standard deviation of a normal distribution divided by its median absolute deviation."""


class Scatter(NamedTuple):
    """Variation of a run's undisturbed samples about the medians of their configurations.

    spread: standard deviation of the ratio to the median (0.02: 2 %), robust to outliers; NaN where no configuration
    has two undisturbed samples. num_stray: samples further than STRAY_SHARE from the median, of num undisturbed ones.
    """

    spread: float
    num_stray: int
    num: int

    @property
    def sentence(self) -> str:
        """The variation as a sentence; empty where it is not known."""
        if math.isnan(self.spread):
            return ""
        far = ""
        if self.num_stray:
            is_one = self.num_stray == 1
            far = (
                f", and {self.num_stray:,} of {counted(self.num, 'undisturbed sample')} {'is' if is_one else 'are'} "
                f"more than {percent(STRAY_SHARE)} off"
            )
        return f"Samples vary by ±{percent(self.spread, 1)} with nothing else running{far}."


def scatter_of(samples: Samples, metric: str) -> Scatter:
    """Return the scatter of a run's samples in a metric."""
    is_own = _is_undisturbed(samples) & np.isfinite(samples[metric])
    cells, num = np.unique(samples["cell"][is_own], return_counts=True)
    is_repeated = is_own & np.isin(samples["cell"], cells[num > 1])
    ratios = ratios_of(samples, metric)
    distances = np.abs(ratios[is_repeated] - 1)
    spread = _OF_MAD * float(np.median(distances)) if len(distances) else math.nan
    return Scatter(spread, int((kinds_of(samples, ratios) == KINDS.index("stray")).sum()), int(is_own.sum()))


def kinds_of(samples: Samples, ratios: npt.NDArray[np.float64]) -> npt.NDArray[np.int8]:
    """Return the kind of each sample as an index into KINDS, shape (n,); ratios (n,): as `ratios_of` returns them."""
    kinds = np.full(len(samples), KINDS.index("steady"), np.int8)
    kinds[np.abs(ratios - 1) > STRAY_SHARE] = KINDS.index("stray")
    for flag, kind in _OF_FLAGS.items():
        kinds[samples["flag"] == FLAGS.index(flag)] = KINDS.index(kind)
    kinds[samples["is_replaced"]] = KINDS.index("replaced")
    return kinds


def ratios_of(samples: Samples, metric: str) -> npt.NDArray[np.float64]:
    """Return each sample divided by the median of its configuration's counted samples, shape (n,); NaN without one."""
    is_used = is_counted(samples)
    medians = np.full(len(samples), np.nan)
    order = np.argsort(samples["cell"], kind="stable")
    ends = np.flatnonzero(np.diff(samples["cell"][order], append=-1)) + 1
    for rows in np.split(order, ends)[:-1]:
        used = samples[metric][rows[is_used[rows]]]
        used = used[np.isfinite(used)]
        medians[rows] = np.median(used) if len(used) else np.nan
    ratios: npt.NDArray[np.float64] = samples[metric] / medians
    return ratios


def _is_undisturbed(samples: Samples) -> npt.NDArray[np.bool_]:
    is_clean: npt.NDArray[np.bool_] = (samples["flag"] == FLAGS.index("clean")) & ~samples["is_replaced"]
    return is_clean
