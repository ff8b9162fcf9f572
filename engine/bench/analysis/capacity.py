"""Capacity: the users that a machine or cluster serves within an objective, from a run that varied their number."""

import math
from collections import defaultdict
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from engine.bench.planning.plan import Objective
from engine.errors import ConfigError
from engine.runs import CLUSTER, CellRecord, RunRecord
from engine.samples import Samples, is_counted
from engine.stats import Interval, median_interval
from engine.units import counted as several
from engine.units import exact

_MEDIAN, _P95 = 0.5, 0.95


class Point(NamedTuple):
    """Measurements at one number of users.

    ttft_s: median time to first token; per_s: median speed of each stream; goodput_per_s: requests per second within
    the objective. share: of the requests that met the objective; NaN where the run counted them by another objective.
    margins: by what factor time to first token and speed were better than required, at the quantile of the objective's
    share; 1 is exactly as required.
    """

    users: int
    ttft_s: Interval
    per_s: Interval
    goodput_per_s: Interval
    share: float
    margins: tuple[float, float]


class Capacity(NamedTuple):
    """Answer to the capacity question.

    users: the largest number served within the objective, 0 where even the smallest measured number is not;
    is_at_least: no larger number was measured. points: the measurements, by number of users.
    """

    users: int
    is_at_least: bool
    points: tuple[Point, ...]
    sentence: str


def capacity(run: RunRecord, objective: Objective | None = None) -> Capacity:
    """Return the largest number of users at which a large enough share of requests meets the objective.

    `objective` None: the run's own. The number is interpolated between two measured ones, never extrapolated. The
    requests of a run are counted by the run's own objective only; for another one the quantiles of time to first token
    and speed decide, since each sample stores the median and the 95th percentile. Where other settings vary too, the
    ones that serve the most users are used. Raises ConfigError where the run did not vary the number of users.
    """
    measured_by = Objective.from_dict(run.plan.get("objective", {}))
    wanted = objective or measured_by
    is_own = (wanted.ttft_s, wanted.per_s) == (measured_by.ttft_s, measured_by.per_s)
    groups: dict[str, list[Point]] = defaultdict(list)
    counted = run.samples[is_counted(run.samples)]
    for cell in run.cells:
        samples = counted[counted["cell"] == cell.number]
        if cell.settings.get("users") and len(samples):
            groups[_others(cell)].append(_point(int(cell.settings["users"]), samples, wanted, is_own))
    if not groups:
        raise ConfigError("this run did not vary the number of users: run it again with users varied")
    subject = f"The {run.origin}" if run.origin.startswith(CLUSTER) else "This machine"
    found = [_capacity(sorted(points), wanted, subject) for points in groups.values()]
    return max(found, key=lambda one: (one.users, one.is_at_least))


def _others(cell: CellRecord) -> str:
    return repr(sorted((name, repr(value)) for name, value in cell.settings.items() if name != "users"))


def _point(users: int, samples: Samples, wanted: Objective, is_own: bool) -> Point:
    share = math.nan
    if is_own:
        answered = np.nansum(samples["requests_per_s"] * samples["duration_s"])
        share = float(np.nansum(samples["goodput_per_s"] * samples["duration_s"]) / answered) if answered else math.nan
    ttft_s, tpot_s = (_at_share(samples, name, wanted.share) for name in ("ttft", "tpot"))
    return Point(
        users,
        _interval(samples, "ttft_s"),
        _interval(samples, "decode_per_s"),
        _interval(samples, "goodput_per_s"),
        share,
        (wanted.ttft_s / ttft_s, 1 / (wanted.per_s * tpot_s)),
    )


def _interval(samples: Samples, name: str) -> Interval:
    known = samples[np.isfinite(samples[name])]
    return median_interval(known[name], known["round"])


def _at_share(samples: Samples, name: str, share: float) -> float:
    """Return the seconds that this share of requests stayed within, interpolated between median and 95th percentile.

    The interpolation is logarithmic. Nothing is known beyond the 95th percentile, so its value is used there; the
    median is used where there are too few requests for a 95th percentile.
    """
    with np.errstate(all="ignore"):
        middle, high = (_median(samples[f"{name}{end}_s"]) for end in ("", "_p95"))
    if math.isnan(high):
        return middle
    part = min(1.0, (share - _MEDIAN) / (_P95 - _MEDIAN))
    return float(middle * (high / middle) ** part) if middle > 0 else high


def _median(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else math.nan


def _capacity(points: list[Point], wanted: Objective, subject: str) -> Capacity:
    def sentence(who: str, note: str) -> str:
        return f"{subject} serves {who} {_within(wanted)}{f' ({note})' if note else ''}."

    is_met = [_is_met(point, wanted) for point in points]
    num_met = is_met.index(False) if False in is_met else len(points)
    if num_met == len(points):
        users = points[-1].users
        text = sentence(f"at least {_named(users)}", "no larger number was measured")
        return Capacity(users, True, tuple(points), text)
    if num_met == 0:
        fewest = points[0].users
        who = "not even one user" if fewest == 1 else f"fewer than {_named(fewest)}"
        return Capacity(0, False, tuple(points), sentence(who, ""))
    below, above = list(pairwise(points))[num_met - 1]
    users = _between(below, above, wanted)
    note = f"interpolated between {below.users} and {above.users}" if users > below.users else ""
    return Capacity(users, False, tuple(points), sentence(_named(users), note))


def _is_met(point: Point, wanted: Objective) -> bool:
    return not any(margin < 1 for margin in point.margins) if math.isnan(point.share) else point.share >= wanted.share


def _between(below: Point, above: Point, wanted: Objective) -> int:
    """Return the whole number of users at which the line between two points first violates the objective."""
    if math.isnan(below.share + above.share):
        margins = zip(below.margins, above.margins, strict=True)
        part = min(math.log(had) / math.log(had / has) for had, has in margins if has < 1)
    else:
        part = (below.share - wanted.share) / (below.share - above.share)
    return min(above.users - 1, below.users + math.floor(part * (above.users - below.users)))


def _named(users: int) -> str:
    return several(users, "user")


def _within(wanted: Objective) -> str:
    return (
        f"with first token < {exact(wanted.ttft_s)} s and ≥ {exact(wanted.per_s)} tok/s each for "
        f"{exact(round(100 * wanted.share, 1))} % of requests"
    )
