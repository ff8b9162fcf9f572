"""Chart of a trend: every run with its interval, the noise between runs, changes of version and people's notes."""

from collections.abc import Sequence
from datetime import timedelta

import plotly.graph_objects as go

from engine.bench.analysis.trends import Change, Trend
from engine.history import downsampling
from engine.runs import TrendPoint
from engine.samples import METRICS_BY_NAME
from engine.stats import Interval
from engine.units import Scale, between, counted, quantity, scale_of
from pages.parts.benchmark.chart_pen import ACCENT, FAINT, GREY, Pen, bars, blank, legend_below, wrapped
from pages.parts.units import local_time

NOISE = "noise: where 95 % of such runs lie"
MOST_LYING, MOST_NOTES, NOTE_CHARACTERS, HOVER_WIDTH, HOVER_LINES = 3, 12, 28, 60, 6
LEAST_MARGIN = timedelta(hours=6)
"""Minimum margin before the first and after the last run, so that a single run is shown at a day's scale."""


def chart(found: Trend, metric: str) -> go.Figure:
    """Draw every run as a dot with its interval, other machines in grey, over the noise band of such runs.

    The axis is zoomed to the values. Dashed lines mark changes of version, labels the notes of runs. Very many runs are
    downsampled to their extremes.
    """
    unit = METRICS_BY_NAME[metric].unit
    scale = scale_of(unit, max(point.value for point in found.points))
    first, newest = found.points[0], found.points[-1]
    figure = blank(
        f"{quantity(newest.value, unit)} in the newest of {counted(len(found.points), 'run')}", "", height=360
    )
    margin = max((newest.created_at - first.created_at) / 20, LEAST_MARGIN)
    figure.update_xaxes(range=[local_time(first.created_at - margin), local_time(newest.created_at + margin)])
    figure.update_yaxes(
        title=f"{METRICS_BY_NAME[metric].label}, {scale.unit}", range=[end * scale.factor for end in found.extent]
    )
    _noise(figure, found, scale)
    is_here = [point.machine_hash == newest.machine_hash for point in found.points]
    places = [point.created_at.timestamp() for point in found.points]
    rows = downsampling.extremes(places, [point.value for point in found.points], is_here).tolist()
    for name, colour, is_same in (("other machines", GREY, False), ("same machine", ACCENT, True)):
        points = [found.points[row] for row in rows if is_here[row] is is_same]
        if points:
            _line(figure, points, scale, unit, name, colour)
    _changes(figure, [change for change in found.changes if change.what])
    _notes(figure, [point for point in found.points if point.note][-MOST_NOTES:], scale)
    figure.update_layout(showlegend=len(figure.data) > 1)
    legend_below(figure)
    return figure


def _changes(figure: go.Figure, changes: Sequence[Change]) -> None:
    """Draw changes of version as dashed lines; labels of many are upright, so that they do not run into each other."""
    is_upright = len(changes) > MOST_LYING
    place = {"textangle": -90, "textposition": "top right"} if is_upright else {"textangle": 0, "textposition": "end"}
    for change in changes:
        figure.add_vline(
            x=local_time(change.when), line={"color": GREY, "dash": "dash", "width": 1.2},
            label={"text": Pen.text(change.what), "font": {"color": GREY}, **place},
        )  # fmt: skip


def _noise(figure: go.Figure, found: Trend, scale: Scale) -> None:
    """Draw the noise bands, one legend entry for all."""
    for number, band in enumerate(found.bands):
        low, high = band.low * scale.factor, band.high * scale.factor
        first, last = local_time(band.first), local_time(band.last)
        figure.add_scatter(
            x=[first, last, last, first], y=[low, low, high, high], fill="toself", fillcolor=FAINT, mode="lines",
            line={"width": 0}, name=NOISE, legendgroup=NOISE, showlegend=number == 0, hoverinfo="skip",
        )  # fmt: skip


def _notes(figure: go.Figure, points: Sequence[TrendPoint], scale: Scale) -> None:
    for point in points:
        figure.add_annotation(
            x=local_time(point.created_at), y=point.value * scale.factor, text=Pen.text(point.note, NOTE_CHARACTERS),
            hovertext=wrapped(point.note, HOVER_WIDTH, most=HOVER_LINES), arrowcolor=GREY, arrowwidth=1, arrowhead=0,
            ax=0, ay=-36, font={"size": 12},
        )  # fmt: skip


def _line(figure: go.Figure, points: Sequence[TrendPoint], scale: Scale, unit: str, name: str, colour: str) -> None:
    intervals = [Interval(point.value, point.low, point.high, len(point.by_round)) for point in points]
    figure.add_scatter(
        x=[local_time(point.created_at) for point in points],
        y=[point.value * scale.factor for point in points],
        error_y=bars(intervals, scale, colour),
        mode="lines+markers" if colour == ACCENT else "markers",
        name=name, marker={"color": colour, "size": 8}, line={"color": colour, "width": 2},
        hovertext=[_hover(point, unit) for point in points], hoverinfo="text", cliponaxis=False,
    )  # fmt: skip


def _hover(point: TrendPoint, unit: str) -> str:
    """Return the hover text of a run."""
    versions = ", ".join(f"{name} {version}" for name, version in point.versions.items())
    lines = [
        f"<b>{quantity(point.value, unit)}</b>",
        between(point.low, point.high, unit, point.value),
        f"{Pen.text(point.name)} {local_time(point.created_at):%-d %b %Y %H:%M}".strip(),
        Pen.text(versions, 120),
        wrapped(point.note, HOVER_WIDTH, most=HOVER_LINES),
    ]
    return "<br>".join(line for line in lines if line)
