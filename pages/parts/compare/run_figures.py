"""Charts of compared configurations: samples behind the medians, Pareto front, and parallel coordinates."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from engine.bench.analysis.comparison import Comparison
from engine.bench.analysis.entries import Entry, heading, shown
from engine.bench.analysis.pareto import pareto
from engine.history import downsampling
from engine.samples import is_counted
from pages.parts.benchmark.chart_pen import ACCENT, FAINT, GREY, HEIGHT, NUM_SHADES, Pen, beside, blank, ramp
from pages.parts.compare import run_pen

MOST_ROWS, MOST_DIMENSIONS = 40, 10
LARGEST_MARK, ROW_HEIGHT = 34, 34
SPEED = ("tokens_per_s", "end_to_end_per_s", "requests_per_s")
LATENCY = ("ttft_s", "tpot_s", "e2e_s")
MEMORY = "pss_bytes"


class _Taken(NamedTuple):
    """Samples of several entries, shape (n,) each. `place` is the number of the entry, from 0."""

    place: npt.NDArray[np.intp]
    value: npt.NDArray[np.float64]
    is_counted: npt.NDArray[np.bool_]


def samples(comparison: Comparison) -> go.Figure:
    """Draw every sample of each entry with its box; excluded ones hollow and grey, large numbers downsampled."""
    metric = comparison.main_metric
    drawn = run_pen.having(comparison, metric)[:MOST_ROWS][::-1]
    scale, taken = run_pen.scale(drawn, metric), _samples_of(drawn, metric)
    num_out, num_all = int((~taken.is_counted).sum()), len(taken.value)
    title = f"{num_out:,} of {num_all:,} samples excluded" if num_out else f"All {num_all:,} samples included"
    figure = blank(title, run_pen.titled(metric, scale.unit), height=max(HEIGHT // 2, 96 + ROW_HEIGHT * len(drawn)))
    rows = downsampling.ranks(taken.value, 2 * taken.place + taken.is_counted)
    for place, entry in enumerate(drawn):
        here = rows[taken.place[rows] == place]
        values, is_counted = taken.value[here] * scale.factor, taken.is_counted[here]
        _strip(figure, place, values[is_counted], values[~is_counted], entry)
    figure.update_xaxes(showgrid=True, gridcolor=FAINT, rangemode="tozero")
    figure.update_yaxes(
        tickvals=list(range(len(drawn))), ticktext=[Pen.text(entry.label, 50) for entry in drawn],
        showgrid=False, range=[-0.6, len(drawn) - 0.4],
    )  # fmt: skip
    return figure


def front_metrics(comparison: Comparison) -> tuple[str, ...]:
    """Return speed, latency and memory as far as two entries have them together; empty without speed and latency."""
    for pair in ((speed, latency) for speed in SPEED for latency in LATENCY):
        if len(run_pen.having(comparison, *pair)) > 1:
            return (*pair, MEMORY) if len(run_pen.having(comparison, *pair, MEMORY)) > 1 else pair
    return ()


def front(comparison: Comparison, metrics: tuple[str, ...]) -> go.Figure:
    """Draw speed against latency, memory as the size of the mark; dominated entries are hollow and grey.

    The best in each of the metrics is labelled.
    """
    speed, latency, *memory = metrics
    drawn = run_pen.having(comparison, *metrics)
    best = set(pareto(drawn, metrics))
    named = {pareto([entry for entry in drawn if entry.key in best], [name])[0] for name in metrics}
    x_scale, y_scale = run_pen.scale(drawn, latency), run_pen.scale(drawn, speed)
    beaten_in = "speed, latency and memory" if memory else "speed and latency"
    title = f"Pareto-optimal in {beaten_in}: {len(best):,} of {len(drawn):,}"
    figure = blank(title, run_pen.titled(latency, x_scale.unit))
    for is_best in (False, True):
        chosen = [entry for entry in drawn if (entry.key in best) is is_best]
        places = run_pen.medians(chosen, latency, x_scale.factor)
        figure.add_scatter(
            x=places,
            y=run_pen.medians(chosen, speed, y_scale.factor),
            mode="markers+text",
            text=[Pen.text(entry.label, 44) if entry.key in named else "" for entry in chosen],
            textposition=beside(places),
            marker={
                "color": ACCENT if is_best else GREY, "symbol": "circle" if is_best else "circle-open",
                "line": {"width": 0 if is_best else 1.5},
            },
            name="Pareto-optimal" if is_best else "dominated",
            hovertext=[run_pen.hover_of_metrics(entry, metrics) for entry in chosen],
            hoverinfo="text",
            cliponaxis=False,
        )  # fmt: skip
        figure.data[-1].marker.update(_sizes(chosen, drawn) if memory else {"size": 10})
    figure.update_layout(legend={"itemsizing": "constant"})
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(title=run_pen.titled(speed, y_scale.unit), rangemode="tozero")
    return figure


def parallel(comparison: Comparison) -> go.Figure:
    """Draw one line per entry through the settings that differ and the metrics that all of them have."""
    drawn = run_pen.having(comparison, comparison.main_metric)
    settings = comparison.differing[: MOST_DIMENSIONS // 2]
    metrics = [name for name in comparison.metrics if all(name in entry.cell.metrics for entry in drawn)]
    axes = [_setting_axis(drawn, name) for name in settings]
    axes += [_metric_axis(drawn, name) for name in metrics[: MOST_DIMENSIONS - len(axes)]]
    shades = [[number / (NUM_SHADES - 1), shade] for number, shade in enumerate(ramp(NUM_SHADES))]
    figure = blank("Each line is a configuration; drag along an axis to filter", "", height=HEIGHT + 60)
    figure.add_parcoords(
        dimensions=axes, line={"color": run_pen.medians(drawn, comparison.main_metric, 1), "colorscale": shades}
    )
    figure.update_layout(margin={"l": 90, "r": 60, "t": 110})
    return figure


def _strip(
    figure: go.Figure, place: int, used: npt.NDArray[np.float64], left_out: npt.NDArray[np.float64], entry: Entry
) -> None:
    """Draw the samples of one entry on its row."""
    figure.add_box(
        x=used, y=[place] * len(used), orientation="h", width=0.5, boxpoints="all", pointpos=0, jitter=0.5,
        fillcolor="rgba(0,0,0,0)", line={"color": ACCENT, "width": 1.3}, hoverinfo="x", showlegend=False,
        marker={"color": ACCENT, "size": 5, "opacity": 0.35, "symbol": run_pen.symbol(entry)},
    )  # fmt: skip
    figure.add_scatter(
        x=left_out, y=[place] * len(left_out), mode="markers", hoverinfo="skip", showlegend=False,
        marker={"color": GREY, "size": 5, "symbol": "circle-open"},
    )  # fmt: skip


def _samples_of(entries: Sequence[Entry], metric: str) -> _Taken:
    """Return the samples that have a metric, in the order of the entries."""
    runs = {entry.run.id: entry.run for entry in entries}
    of_run = {id: is_counted(run.samples) for id, run in runs.items()}
    rows = [np.flatnonzero(_of_cell(entry) & np.isfinite(entry.run.samples[metric])) for entry in entries]
    taken = [entry.run.samples[chosen] for entry, chosen in zip(entries, rows, strict=True)]
    counted = [of_run[entry.run.id][chosen] for entry, chosen in zip(entries, rows, strict=True)]
    place = np.repeat(np.arange(len(taken)), [len(samples) for samples in taken])
    values = [samples[metric] for samples in taken]
    return _Taken(place, np.concatenate([np.zeros(0), *values]), np.concatenate([np.zeros(0, bool), *counted]))


def _of_cell(entry: Entry) -> npt.NDArray[np.bool_]:
    of_cell: npt.NDArray[np.bool_] = entry.run.samples["cell"] == entry.cell.number
    return of_cell


def _sizes(entries: list[Entry], among: list[Entry]) -> dict[str, Any]:
    """Return marker options whose area is proportional to the memory."""
    largest = max(run_pen.medians(among, MEMORY, 1))
    sizes = run_pen.medians(entries, MEMORY, 1)
    return {"size": sizes, "sizemode": "area", "sizeref": 2 * largest / LARGEST_MARK**2, "sizemin": 4}


def _setting_axis(entries: list[Entry], name: str) -> dict[str, Any]:
    values, label = run_pen.values_of(entries, name), Pen.text(heading(name), 24)
    if all(map(run_pen.is_number, values)):
        return {"label": label, "values": [run_pen.setting_of(entry, name) for entry in entries], "tickvals": values}
    return {
        "label": label,
        "values": [values.index(run_pen.setting_of(entry, name)) for entry in entries],
        "tickvals": list(range(len(values))),
        "ticktext": [Pen.text(shown(name, value), 20) for value in values],
    }


def _metric_axis(entries: list[Entry], name: str) -> dict[str, Any]:
    scale = run_pen.scale(entries, name)
    values = run_pen.medians(entries, name, scale.factor)
    decimals = 0 if max(values) >= 100 else 1 if max(values) >= 10 else 2
    return {"label": run_pen.titled(name, scale.unit), "values": values, "tickformat": f",.{decimals}f"}
