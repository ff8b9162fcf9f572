"""What charts draw: the cells and samples of a run ordered into lines, a grid and a strip, each with its finding."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.bench.findings.summary import CellSummary, Summary
from engine.bench.planning.axes import AXES_BY_NAME
from engine.bench.planning.layout import parse_layout
from engine.bench.planning.product import short_paths
from engine.errors import ConfigError
from engine.runs import RunRecord
from engine.samples import METRICS_BY_NAME, Samples, is_counted
from engine.stats import Interval
from engine.units import exact

NEARLY_BEST_SHARE = 0.95
"""What a cell must reach of the best to count as nearly as good."""

LONGEST_GAP_S = 120.0
"""A longer pause between two samples, as where a run was continued the next day, is drawn as this long."""


class Point(NamedTuple):
    """A cell on a line, at `x`."""

    x: float
    y: Interval
    cell: CellSummary


class Line(NamedTuple):
    """Cells that differ in one thing only, by that thing; the label says what they have in common."""

    label: str
    points: tuple[Point, ...]


class Scaling(NamedTuple):
    """Speed of one instance by its threads. ideal: the speed at the fewest threads times their ratio, line by line."""

    lines: tuple[Line, ...]
    ideal: tuple[tuple[float, ...], ...]
    finding: str


class Advice(NamedTuple):
    """cell: the one to use, None where nothing was measured; more_rounds: that would probably tell more, 0: none."""

    cell: int | None
    more_rounds: int


class Grid(NamedTuple):
    """The best cell of each layout: cells[row][column] of instances[row] × threads[column], None without one."""

    instances: tuple[int, ...]
    threads: tuple[int, ...]
    cells: tuple[tuple[CellSummary | None, ...], ...]
    finding: str


class Strip(NamedTuple):
    """Samples by time, shape (n,) each. ratio: sample over the median of its cell; is_counted: it is in that median."""

    elapsed_min: npt.NDArray[np.float32]
    ratio: npt.NDArray[np.float32]
    cell: npt.NDArray[np.int32]
    flag: npt.NDArray[np.int8]
    is_counted: npt.NDArray[np.bool_]
    finding: str

    def at(self, rows: npt.NDArray[np.intp]) -> "Strip":
        """Some of the samples, with what is found of all."""
        elapsed_min, ratio, cell, flag, is_counted, finding = self
        return Strip(elapsed_min[rows], ratio[rows], cell[rows], flag[rows], is_counted[rows], finding)


def measured(summary: Summary, metric: str) -> list[CellSummary]:
    """The cells that have a value of `metric`, in the order of their numbers."""
    return [cell for cell in summary.cells if metric in cell.metrics and math.isfinite(cell.metrics[metric].value)]


def best_of(cells: Sequence[CellSummary], metric: str) -> CellSummary:
    """The cell with the best median of `metric`."""
    sign = 1 if METRICS_BY_NAME[metric].is_more_better is not False else -1
    return max(cells, key=lambda cell: sign * cell.metrics[metric].value)


def varied(cells: Sequence[CellSummary]) -> dict[str, list[Any]]:
    """The settings in which cells differ, each with its values; one that follows from another is left out.

    So is the number of threads for prefill where it is always that of the layout, and what is not a single value, as
    the whole row of another program.
    """
    values: dict[str, list[Any]] = {}
    for name in dict.fromkeys(name for cell in cells for name in cell.settings):
        column = [cell.settings.get(name) for cell in cells]
        if any(isinstance(value, list | Mapping) for value in column):
            continue
        if len(set(column)) > 1 and not any(_follows(column, earlier) for earlier in values.values()):
            values[name] = column
    return {name: list(dict.fromkeys(column)) for name, column in values.items()}


def _follows(column: list[Any], earlier: list[Any]) -> bool:
    """True where the value in `earlier` settles the one in `column`."""
    return len(set(zip(earlier, column, strict=True))) == len(set(earlier))


def numeric_axes(cells: Sequence[CellSummary]) -> list[str]:
    """The varied settings that are numbers, the one with most values first."""
    values = varied(cells)
    numeric = [name for name, found in values.items() if all(_is_number(value) for value in found)]
    return sorted(numeric, key=lambda name: -len(values[name]))


def by_axis(summary: Summary, axis: str, metric: str) -> list[Line]:
    """One line for each combination of the other varied settings, `metric` by `axis`."""
    cells = [cell for cell in measured(summary, metric) if _is_number(cell.settings.get(axis))]
    return _lines(summary, cells, {cell.number: float(cell.settings[axis]) for cell in cells}, (axis,), metric)


def against(summary: Summary, axis: str, x_metric: str, metric: str) -> list[Line]:
    """As `by_axis`, but the points stand at the median of another metric, in the order of the axis."""
    cells = [cell for cell in measured(summary, metric) if x_metric in cell.metrics]
    places = {cell.number: cell.metrics[x_metric].value for cell in cells}
    cells = sorted((cell for cell in cells if math.isfinite(places[cell.number])), key=_by_axis(axis))
    return _lines(summary, cells, places, (axis,), metric, is_sorted=False)


def scaling(summary: Summary, metric: str) -> Scaling | None:
    """How speed grows with the threads of one instance; None where fewer than two numbers of threads were measured."""
    cells = [cell for cell in measured(summary, metric) if _layout(cell.settings)[0] == 1]
    places = {cell.number: float(_layout(cell.settings)[1]) for cell in cells}
    lines = [line for line in _lines(summary, cells, places, ("layout",), metric) if len(line.points) > 1]
    if not lines:
        return None
    ideal = tuple(tuple(line.points[0].y.value * point.x / line.points[0].x for point in line.points) for line in lines)
    first, last = lines[0].points[0], max(lines[0].points, key=lambda point: point.y.value)
    finding = "No number of threads is faster than one instance with the fewest"
    if last is not first:
        gain = last.y.value / first.y.value
        ideal_gain = exact(round(last.x / first.x, 1))
        finding = f"{last.x:.0f} threads are {gain:.2f} times as fast as {first.x:.0f}; ideal is {ideal_gain}"
    return Scaling(tuple(lines), ideal, finding)


def layouts(summary: Summary, metric: str) -> Grid | None:
    """The best cell of each layout; None unless instances and threads both vary."""
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
    """The cell with the least memory (PSS) among those within 5 % of the best; all of them have both figures."""
    best, is_more_better = best_of(cells, metric).metrics[metric].value, METRICS_BY_NAME[metric].is_more_better
    ratios = {cell.number: cell.metrics[metric].value / best for cell in cells}
    near = [
        cell
        for cell in cells
        if (1 / ratios[cell.number] if is_more_better is False else ratios[cell.number]) >= NEARLY_BEST_SHARE
    ]
    return min(near, key=lambda cell: cell.metrics["pss_bytes"].value)


def advice(run: RunRecord, summary: Summary) -> Advice:
    """The tuner's own answer where the run has one, else what the summary's verdicts say.

    Where the question is not which cell is best, no cell is advised and nothing is open.
    """
    if "winner" in run.outcome:
        is_open = run.outcome.get("word") == "not enough data"
        return Advice(run.outcome["winner"], (run.outcome.get("more_rounds") or 0) if is_open else 0)
    if run.question in ("python", "users"):
        return Advice(None, 0)
    open_cells = [
        cell
        for cell in measured(summary, summary.main_metric)
        if cell.verdict is not None and cell.verdict.word == "not enough data"
    ]
    if not open_cells or summary.best != summary.baseline:
        return Advice(summary.best, 0)
    likely = best_of(open_cells, summary.main_metric)
    return Advice(summary.best, likely.verdict.more_rounds if likely.verdict else 0)


def strip(samples: Samples, metric: str) -> Strip:
    """Samples in the order of time, each beside the median of its own cell."""
    rows = np.argsort(samples["started_at"], kind="stable")
    rows = rows[np.isfinite(samples[metric][rows])]
    samples, counted = samples[rows], is_counted(samples)[rows]
    medians = np.full(len(samples), np.nan)
    order = np.argsort(samples["cell"], kind="stable")
    ends = np.flatnonzero(np.diff(samples["cell"][order], append=-1)) + 1
    for rows in np.split(order, ends)[:-1]:
        used = samples[metric][rows[counted[rows]]]
        medians[rows] = np.median(used) if len(used) else np.nan
    started = samples["started_at"]
    elapsed_s = np.cumsum(np.minimum(np.diff(started, prepend=started[:1]), LONGEST_GAP_S))
    num_out = int((~counted).sum())
    finding = f"{num_out:,} of {len(samples):,} samples excluded" if num_out else "Every sample counts"
    return Strip(
        (elapsed_s / 60).astype(np.float32),
        (samples[metric] / medians).astype(np.float32),
        samples["cell"],
        samples["flag"],
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
    """Points grouped by the varied settings other than `along`."""
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
    """What the values say, in the words of a cell's label; short: what paths are called, by axis."""
    shown = [
        AXES_BY_NAME[name].show(short.get(name, {}).get(value, value)) if name in AXES_BY_NAME else str(value)
        for name, value in zip(names, values, strict=True)
    ]
    return ", ".join(shown)


def _by_axis(axis: str) -> Any:
    return lambda cell: cell.settings[axis] if _is_number(cell.settings.get(axis)) else 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _layout(settings: Mapping[str, Any]) -> tuple[int, int]:
    """Instances and threads of a cell; (0, 0) where its settings name no layout, or one that cannot be."""
    with suppress(ConfigError, KeyError):
        layout = parse_layout(settings["layout"]).resolved()
        return layout.instances, int(layout.threads)
    return 0, 0
