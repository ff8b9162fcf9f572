"""Chart data: the configurations and samples of a run arranged as lines, a grid and a strip, each with its finding."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.bench.analysis.scatter import kinds_of, ratios_of
from engine.bench.analysis.summary import CellSummary, Summary
from engine.bench.planning.axes import AXES_BY_NAME
from engine.bench.planning.layout import parse_layout
from engine.bench.planning.product import short_paths
from engine.errors import ConfigError
from engine.runs import RunRecord
from engine.samples import ENGINES_QUESTION, METRICS_BY_NAME, Samples, is_counted
from engine.stats import Interval
from engine.units import digits, exact

NEARLY_BEST_SHARE = 0.95
"""Share of the best value from which on a configuration counts as nearly as good."""

LONGEST_GAP_S = 120.0
"""A longer pause between two samples, as where a run was continued the next day, is drawn with this length."""


class Point(NamedTuple):
    """A configuration on a line, at `x`."""

    x: float
    y: Interval
    cell: CellSummary


class Line(NamedTuple):
    """Configurations that differ in one setting only, ordered by it; the label names what they have in common."""

    label: str
    points: tuple[Point, ...]


class Scaling(NamedTuple):
    """Speed of one instance by its number of threads.

    ideal: linear scaling, i.e. the speed at the fewest threads times the ratio of threads, for each point of each line.
    """

    lines: tuple[Line, ...]
    ideal: tuple[tuple[float, ...], ...]
    finding: str


class Advice(NamedTuple):
    """Recommendation of a run.

    cell: the configuration to use, None where nothing was measured. is_open: a verdict is missing, which more_rounds
    further rounds would probably give, or for a search for settings a new one with the time budget_s; 0 where that is
    not what is missing.
    """

    cell: int | None
    is_open: bool = False
    more_rounds: int = 0
    budget_s: float = 0.0


class Grid(NamedTuple):
    """Best configuration by layout: cells[row][column] of instances[row] × threads[column], None if not measured."""

    instances: tuple[int, ...]
    threads: tuple[int, ...]
    cells: tuple[tuple[CellSummary | None, ...], ...]
    finding: str


class Strip(NamedTuple):
    """Samples over time, shape (n,) each.

    ratio: sample divided by the median of its configuration; kind: index into KINDS; is_counted: whether the sample is
    part of that median.
    """

    elapsed_min: npt.NDArray[np.float32]
    ratio: npt.NDArray[np.float32]
    cell: npt.NDArray[np.int32]
    kind: npt.NDArray[np.int8]
    is_counted: npt.NDArray[np.bool_]
    finding: str

    def at(self, rows: npt.NDArray[np.intp]) -> "Strip":
        """Return a selection of the samples, with the finding of all of them."""
        elapsed_min, ratio, cell, kind, is_counted, finding = self
        return Strip(elapsed_min[rows], ratio[rows], cell[rows], kind[rows], is_counted[rows], finding)


def measured(summary: Summary, metric: str) -> list[CellSummary]:
    """Return the configurations that have a value of `metric`, in the order of their numbers."""
    return [cell for cell in summary.cells if metric in cell.metrics and math.isfinite(cell.metrics[metric].value)]


def best_of(cells: Sequence[CellSummary], metric: str) -> CellSummary:
    """Return the configuration with the best median of `metric`."""
    sign = 1 if METRICS_BY_NAME[metric].is_more_better is not False else -1
    return max(cells, key=lambda cell: sign * cell.metrics[metric].value)


def varied(cells: Sequence[CellSummary]) -> dict[str, list[Any]]:
    """Return the settings in which configurations differ, each with its values, without those implied by another one.

    Implied is, for example, the number of threads for prefill where it always equals that of the layout, and what an
    engine always runs with. A setting that a configuration lacks is no difference. Settings that are not scalar, such
    as the whole row of another program, are left out too.
    """
    values: dict[str, list[Any]] = {}
    names = list(dict.fromkeys(name for cell in cells for name in cell.settings))
    for name in sorted(names, key=lambda name: name != "arm"):
        column = [cell.settings.get(name) for cell in cells]
        present = [cell.settings[name] for cell in cells if name in cell.settings]
        if any(isinstance(value, list | Mapping) for value in column):
            continue
        if len(set(present)) > 1 and not any(_follows(column, earlier) for earlier in values.values()):
            values[name] = column
    return {name: list(dict.fromkeys(values[name])) for name in names if name in values}


def _follows(column: list[Any], earlier: list[Any]) -> bool:
    """Return True where the value in `earlier` determines the one in `column`."""
    return len(set(zip(earlier, column, strict=True))) == len(set(earlier))


def numeric_axes(cells: Sequence[CellSummary]) -> list[str]:
    """Return the varied settings that are numbers, the one with the most values first."""
    values = varied(cells)
    numeric = [name for name, found in values.items() if all(_is_number(value) for value in found)]
    return sorted(numeric, key=lambda name: -len(values[name]))


def by_axis(summary: Summary, axis: str, metric: str) -> list[Line]:
    """Return one line of `metric` by `axis` for each combination of the other varied settings."""
    cells = [cell for cell in measured(summary, metric) if _is_number(cell.settings.get(axis))]
    return _lines(summary, cells, {cell.number: float(cell.settings[axis]) for cell in cells}, (axis,), metric)


def against(summary: Summary, axis: str, x_metric: str, metric: str) -> list[Line]:
    """Return lines as `by_axis`, but with the median of another metric as x, in the order of the axis."""
    cells = [cell for cell in measured(summary, metric) if x_metric in cell.metrics]
    places = {cell.number: cell.metrics[x_metric].value for cell in cells}
    cells = sorted((cell for cell in cells if math.isfinite(places[cell.number])), key=_by_axis(axis))
    return _lines(summary, cells, places, (axis,), metric, is_sorted=False)


def scaling(summary: Summary, metric: str) -> Scaling | None:
    """Return speed by the threads of one instance; None where fewer than two numbers of threads were measured."""
    cells = [cell for cell in measured(summary, metric) if _layout(cell.settings)[0] == 1]
    places = {cell.number: float(_layout(cell.settings)[1]) for cell in cells}
    lines = [line for line in _lines(summary, cells, places, ("layout",), metric) if len(line.points) > 1]
    if not lines:
        return None
    ideal = tuple(tuple(line.points[0].y.value * point.x / line.points[0].x for point in line.points) for line in lines)
    first, last = lines[0].points[0], max(lines[0].points, key=lambda point: point.y.value)
    finding = "More threads are not faster than the fewest measured"
    if last is not first:
        gain = last.y.value / first.y.value
        ideal_gain = exact(round(last.x / first.x, 1))
        finding = f"{exact(last.x)} threads are {digits(gain)} times as fast as {exact(first.x)}; ideal is {ideal_gain}"
    return Scaling(tuple(lines), ideal, finding)


def layouts(summary: Summary, metric: str) -> Grid | None:
    """Return the best configuration of each layout; None unless instances and threads both vary."""
    best: dict[tuple[int, int], list[CellSummary]] = {}
    for cell in measured(summary, metric):
        if "layout" in cell.settings:
            best.setdefault(_layout(cell.settings), []).append(cell)
    instances, threads = (sorted({layout[side] for layout in best}) for side in (0, 1))
    if len(instances) < 2 or len(threads) < 2:
        return None
    chosen = {layout: best_of(cells, metric) for layout, cells in best.items()}
    rows = tuple(tuple(chosen.get((many, each)) for each in threads) for many in instances)
    winner = best_of(list(chosen.values()), metric)
    many, each = _layout(winner.settings)
    finding = f"{many} × {each} is the best layout" + (f" ({winner.label})" if len(varied(summary.cells)) > 1 else "")
    return Grid(tuple(instances), tuple(threads), rows, finding)


def least_memory(cells: Sequence[CellSummary], metric: str) -> CellSummary:
    """Return the configuration with the least memory (PSS) among those within 5 % of the best.

    All of them must have both figures.
    """
    best, is_more_better = best_of(cells, metric).metrics[metric].value, METRICS_BY_NAME[metric].is_more_better
    ratios = {cell.number: cell.metrics[metric].value / best for cell in cells}
    near = [
        cell
        for cell in cells
        if (1 / ratios[cell.number] if is_more_better is False else ratios[cell.number]) >= NEARLY_BEST_SHARE
    ]
    return min(near, key=lambda cell: cell.metrics["pss_bytes"].value)


def advice(run: RunRecord, summary: Summary) -> Advice:
    """Return the tuner's answer where the run has one, else the recommendation by the summary's verdicts.

    For questions that do not look for the best configuration, none is recommended and no rounds are missing.
    """
    if "winner" in run.outcome:
        is_open = run.outcome.get("word") == "not enough data"
        return Advice(run.outcome["winner"], is_open, budget_s=run.outcome.get("budget_s") or 0.0)
    if run.question in ("python", "users"):
        return Advice(None)
    if run.question == ENGINES_QUESTION:
        missing = [each.verdict for each in summary.cells if each.verdict and each.verdict.word == "not enough data"]
        return Advice(None, bool(missing), max((verdict.more_rounds for verdict in missing), default=0))
    open_cells = [
        cell
        for cell in measured(summary, summary.main_metric)
        if cell.verdict is not None and cell.verdict.word == "not enough data"
    ]
    if not open_cells or summary.best != summary.baseline:
        return Advice(summary.best)
    likely = best_of(open_cells, summary.main_metric)
    return Advice(summary.best, True, likely.verdict.more_rounds if likely.verdict else 0)


def strip(samples: Samples, metric: str) -> Strip:
    """Return the samples in chronological order, each relative to the median of its own configuration."""
    rows = np.argsort(samples["started_at"], kind="stable")
    rows = rows[np.isfinite(samples[metric][rows])]
    counted, started = is_counted(samples)[rows], samples["started_at"][rows]
    elapsed_s = np.cumsum(np.minimum(np.diff(started, prepend=started[:1]), LONGEST_GAP_S))
    num_out = int((~counted).sum())
    finding = f"{num_out:,} of {len(rows):,} samples excluded" if num_out else "All samples included"
    ratios = ratios_of(samples, metric)
    return Strip(
        (elapsed_s / 60).astype(np.float32),
        ratios[rows].astype(np.float32),
        samples["cell"][rows],
        kinds_of(samples, ratios)[rows],
        counted,
        finding,
    )


def _lines(
    summary: Summary,
    cells: list[CellSummary],
    places: Mapping[int, float],
    along: tuple[str, ...],
    metric: str,
    *,
    is_sorted: bool = True,
) -> list[Line]:
    """Group the points by the varied settings other than `along`."""
    others = [name for name in varied(summary.cells) if name not in along]
    groups: dict[tuple[Any, ...], list[Point]] = {}
    for cell in cells:
        group = tuple(cell.settings.get(name) for name in others)
        groups.setdefault(group, []).append(Point(places[cell.number], cell.metrics[metric], cell))
    short = short_paths([cell.settings for cell in cells], others)
    return [
        Line(_label(others, group, short), tuple(sorted(points, key=lambda point: point.x) if is_sorted else points))
        for group, points in groups.items()
    ]


def _label(names: list[str], values: tuple[Any, ...], short: Mapping[str, Mapping[str, str]]) -> str:
    """Return the values as in a configuration's label; short: shortened paths, by axis."""
    shown = [
        AXES_BY_NAME[name].show(short.get(name, {}).get(value, value)) if name in AXES_BY_NAME else str(value)
        for name, value in zip(names, values, strict=True)
        if value is not None or (name in AXES_BY_NAME and AXES_BY_NAME[name].unset)
    ]
    return ", ".join(shown)


def _by_axis(axis: str) -> Any:
    return lambda cell: cell.settings[axis] if _is_number(cell.settings.get(axis)) else 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _layout(settings: Mapping[str, Any]) -> tuple[int, int]:
    """Return instances and threads of a configuration; (0, 0) where its settings have no layout or an invalid one."""
    with suppress(ConfigError, KeyError):
        layout = parse_layout(settings["layout"]).resolved()
        return layout.instances, int(layout.threads)
    return 0, 0
