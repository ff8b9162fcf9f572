"""Trend of a configuration over time: what changed between its runs, and whether it became slower."""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby, pairwise
from statistics import fmean
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from engine.bench.analysis.entries import hardware_of, llama_of, llama_version
from engine.bench.analysis.summary import words_of
from engine.bench.analysis.wording import figure, times, verdict_text
from engine.runs import TrendPoint
from engine.samples import METRICS_BY_NAME, Metric
from engine.stats import Interval, Verdict, compare_independent
from engine.stats.verdicts import SAME_WITHIN
from engine.units import counted

LATEST = 10
"""Number of earlier runs used as the reference; older ones are ignored as out of date."""

FEWEST_RUNS = 4
"""Number of runs below which the variation between runs is unknown."""

MARGIN, LEAST_MARGIN = 0.15, 0.02
"""Margin of a chart above and below its values: a share of their range, and at least this share of the highest."""

_LEVEL = 0.05
_EMBEDDING = {"torch": "PyTorch", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
"""Packages that only embedding runs list."""


class Change(NamedTuple):
    """A difference from the preceding runs on the same machine, such as "llama.cpp 0.3.35 → 0.3.36".

    when, run_id: the first run that has it. verdict: the runs from then to the next change against those before, back
    to the previous change, at most LATEST on each side; num_runs: of both sides together. what is empty for the newest
    run compared with those before it where no known difference separates them.
    """

    when: datetime
    run_id: str
    what: str
    verdict: Verdict
    num_runs: int


class Band(NamedTuple):
    """Noise of the runs between two changes: 95 % of further runs like these would lie from `low` to `high`.

    first, last: times of the first and the last of these runs. In the unit of the metric.
    """

    first: datetime
    last: datetime
    low: float
    high: float


class Trend(NamedTuple):
    """Trend of a configuration.

    points: in chronological order. changes, bands: on the machine of the newest run; a band where there are FEWEST_RUNS
    between two changes. newest: that run against the earlier ones with its fingerprint, None without any. regressions:
    the last change and the newest run, as far as they made it worse.
    """

    points: tuple[TrendPoint, ...]
    changes: tuple[Change, ...]
    newest: Change | None
    regressions: tuple[Change, ...]
    sentence: str
    bands: tuple[Band, ...] = ()

    @property
    def extent(self) -> tuple[float, float]:
        """Lowest and highest value of the points and bands, with a margin, as the range of a chart's axis."""
        values = [point.value for point in self.points] + [end for band in self.bands for end in band[2:]]
        low, high = min(values), max(values)
        margin = max(MARGIN * (high - low), LEAST_MARGIN * abs(high))
        return max(low - margin, 0.0) if low >= 0 else low - margin, high + margin


def trend(points: Sequence[TrendPoint], metric: str = "tokens_per_s") -> Trend:
    """Return the trend of the runs of one configuration by `metric`; see `judged` for the test.

    Only runs on the machine of the newest one are judged; none where that machine is unknown. A metric of which neither
    more nor less is better has no regressions.
    """
    ordered = tuple(sorted(points, key=lambda point: point.created_at))
    if not ordered:
        return Trend((), (), None, (), "No runs of this configuration yet.")
    shown, newest = METRICS_BY_NAME[metric], ordered[-1]
    if len(ordered) == 1:
        said = f"One run so far: {_figure(newest, shown)}. Measure again to see whether it changes."
        return Trend(ordered, (), None, (), said)
    hardware = hardware_of(newest.machine)
    here = [point for point in ordered if hardware and hardware_of(point.machine) == hardware]
    stretches = [list(stretch) for _with, stretch in groupby(here, _surroundings)]
    changes = tuple(_changes(stretches, shown))
    earlier = [point for point in here[:-1] if point.machine_hash == newest.machine_hash][-LATEST:]
    own = _change([newest], earlier, "", shown) if earlier else None
    latest = [change for change in (*changes[-1:], own) if change is not None]
    worse = None if shown.is_more_better is None else words_of(shown)[1]
    regressions = tuple(change for change in latest if change.verdict.word == worse)
    bands = tuple(band for stretch in stretches if (band := _band(stretch)) is not None)
    return Trend(ordered, changes, own, regressions, _sentence(newest, shown, own, latest), bands)


def judged(newer: Sequence[TrendPoint], earlier: Sequence[TrendPoint], metric: Metric) -> Verdict:
    """Return the verdict on newer runs against earlier ones, the pooled rounds of each side as independent samples.

    Runs vary more than their rounds show. With FEWEST_RUNS or more runs, the interval is therefore at least as wide as
    Student's interval of the difference between runs, each represented by its mean logarithm, and the word holds only
    if the whole interval agrees; otherwise it is "not enough data". With fewer runs that variation cannot be estimated,
    and the rounds alone decide.
    """
    rounds = [[value for point in points for value in point.by_round.values()] for points in (newer, earlier)]
    found = compare_independent(*rounds, is_more_better=metric.is_more_better, words=words_of(metric))
    low, high = _between_runs(newer, earlier)
    low, high = float(np.fmin(found.ratio.low, low)), float(np.fmax(found.ratio.high, high))
    ratio = found.ratio._replace(low=low, high=high)
    is_same = found.word == "same"
    is_within = low >= 1 / (1 + SAME_WITHIN) and high <= 1 + SAME_WITHIN
    if is_within if is_same else not low <= 1 <= high:
        return found._replace(ratio=ratio)
    return found._replace(word="not enough data", ratio=ratio, more_rounds=found.more_rounds or found.num_rounds)


def _between_runs(newer: Sequence[TrendPoint], earlier: Sequence[TrendPoint]) -> tuple[float, float]:
    """Return the interval of the ratio of newer to earlier runs, each run counted once; NaN below FEWEST_RUNS."""
    sides = [np.array([fmean(logs) for point in points if (logs := _logs(point))]) for points in (newer, earlier)]
    num_runs = sum(map(len, sides))
    if num_runs < FEWEST_RUNS or not all(map(len, sides)):
        return math.nan, math.nan
    degrees = num_runs - 2
    variance = sum(float(((side - side.mean()) ** 2).sum()) for side in sides) / degrees
    reach = -float(stdtrit(degrees, _LEVEL / 2)) * math.sqrt(variance * sum(1 / len(side) for side in sides))
    difference = float(sides[0].mean() - sides[1].mean())
    return math.exp(difference - reach), math.exp(difference + reach)


def _logs(point: TrendPoint) -> list[float]:
    return [math.log(value) for value in point.by_round.values() if value > 0]


def _band(points: Sequence[TrendPoint]) -> Band | None:
    """Return the prediction interval of one more run, by Student's t on logarithms; None below FEWEST_RUNS."""
    logs = np.log([point.value for point in points if point.value > 0])
    if len(logs) < FEWEST_RUNS:
        return None
    reach = -float(stdtrit(len(logs) - 1, _LEVEL / 2)) * float(logs.std(ddof=1)) * math.sqrt(1 + 1 / len(logs))
    middle = float(logs.mean())
    return Band(points[0].created_at, points[-1].created_at, math.exp(middle - reach), math.exp(middle + reach))


def _changes(stretches: Sequence[Sequence[TrendPoint]], metric: Metric) -> Iterator[Change]:
    """Yield each change of software or system between the runs of one machine; stretches: the runs between changes."""
    for before, after in pairwise(stretches):
        yield _change(after[:LATEST], before[-LATEST:], _difference(before[-1], after[0]), metric)


def _change(newer: Sequence[TrendPoint], earlier: Sequence[TrendPoint], what: str, metric: Metric) -> Change:
    verdict = judged(newer, earlier, metric)
    return Change(newer[0].created_at, newer[0].run_id, what, verdict, len(newer) + len(earlier))


def _surroundings(point: TrendPoint) -> dict[str, str]:
    """Return the versions, build and system of a run, i.e. what may change on one machine."""
    llama = llama_of(point.machine)
    return {
        "llama.cpp": llama_version(point.versions),
        "llama.cpp's build": " ".join(str(llama.get(name, "")) for name in ("commit", "compiler", "features")),
        "Logitbench": point.versions.get("logitbench", ""),
        **{label: point.versions.get(name, "") for name, label in _EMBEDDING.items()},
        "Python": point.versions.get("python", ""),
        "system": str(point.machine.get("system", "")),
    }


def _difference(before: TrendPoint, after: TrendPoint) -> str:
    old, new = _surroundings(before), _surroundings(after)
    changed = [name for name in new if old[name] != new[name]]
    if "llama.cpp" in changed and "llama.cpp's build" in changed:
        changed.remove("llama.cpp's build")
    return ", ".join(
        "another build of llama.cpp"
        if name == "llama.cpp's build"
        else f"{name} {old[name] or '?'} → {new[name] or '?'}"
        for name in changed
    )


def _sentence(newest: TrendPoint, metric: Metric, own: Change | None, latest: Sequence[Change]) -> str:
    """Compare the newest run with earlier ones and describe the last change; latest: that change and `own`."""
    said = f"{_figure(newest, metric)}, {_beside(own, metric) if own else 'the first run with this fingerprint'}."
    for change in latest:
        if change.what:
            said += f" Since {change.when:%Y-%m-%d}, {change.what}: {verdict_text(change.verdict)}."
    if any(change.num_runs < FEWEST_RUNS and change.verdict.word in words_of(metric) for change in latest):
        said += " With so few runs this may be chance; a few more would settle it."
    return said


def _beside(change: Change, metric: Metric) -> str:
    """Return the comparison of the newest run with those before it, in words."""
    before = f"the {counted(change.num_runs - 1, 'earlier run')} with this fingerprint"
    word, ratio = change.verdict.word, times(change.verdict.ratio)
    if word == "same":
        return f"same as {before}"
    if word in words_of(metric):
        return f"{word} than {before}: {ratio}"
    return f"{ratio} that of {before}: no change detected"


def _figure(point: TrendPoint, metric: Metric) -> str:
    interval = Interval(point.value, point.low, point.high, len(point.by_round))
    return f"{figure(interval, metric.unit)} {metric.label}"
