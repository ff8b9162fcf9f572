"""Shared chart drawing: an empty chart in the workbench's style, and a pen for medians, intervals and samples."""

import html
import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
import plotly.io
import streamlit  # noqa: F401  registers the template whose colours the browser fills in

from engine.bench.analysis.scatter import KINDS, Kind, kinds_of, ratios_of
from engine.bench.analysis.series import Point
from engine.bench.analysis.summary import CellSummary
from engine.runs import RunRecord
from engine.samples import METRICS_BY_NAME, is_counted
from engine.stats import Interval
from engine.units import Scale, between, exact, quantity, scale_of

HEIGHT = 340
GREY, FAINT = "#8B949E", "rgba(139, 148, 158, 0.22)"
MOST_DOTS = 2_000
AFTER_LINES = 2_000
"""Rank of kinds of samples in a legend, behind the lines, which have Plotly's 1,000."""

LONGEST_TEXT = 60
TITLE_LINE, LINE_HEIGHT = 68, 20
"""Characters per line of a title, few enough for a narrow window, and the height of a line in pixels."""

_TEMPLATE = plotly.io.templates["streamlit"].layout
COLOURS = _TEMPLATE.colorway[:6]
"""As many colours as the theme has."""

ACCENT = COLOURS[0]
RAMP = [colour for _, colour in _TEMPLATE.colorscale.sequential]
FAINTEST_AREA, FAINTEST_LINE = 3, 5
"""Indices of RAMP from which an area and a thin line stand out from the background; a line by 3 : 1 in both themes."""
NUM_SHADES = len(RAMP) - FAINTEST_LINE
MARKS = ("circle", "square", "diamond", "triangle-up")


class Mark(NamedTuple):
    """Mark of a kind of samples: its words in the legend, symbol and colour."""

    words: str
    symbol: str
    colour: str

    def legend_name(self, *, is_counted: bool) -> str:
        """Return the words, and whether medians use such samples where that is not what one would expect."""
        is_expected = is_counted is (self.colour == ACCENT)
        return self.words if is_expected else f"{self.words}, {'counted' if is_counted else 'not counted'}"


MARKS_OF: dict[Kind, Mark] = {
    "steady": Mark("undisturbed", "circle", ACCENT),
    "stray": Mark("varied by itself", "diamond", ACCENT),
    "disturbed": Mark("disturbed from outside", "circle-open", GREY),
    "throttled": Mark("throttled", "square-open", GREY),
    "cold": Mark("read from the disk", "triangle-up-open", GREY),
    "replaced": Mark("measured again", "x-thin-open", GREY),
}
"""Filled and blue: the sample's own value; hollow and grey: something outside slowed it."""


def blank(title: str, x_title: str, *, height: int = HEIGHT) -> go.Figure:
    """Return a chart that is empty except for its title, which states the finding."""
    figure = go.Figure()
    style(figure, title, height=height)
    figure.update_xaxes(title=x_title)
    return figure


def style(figure: go.Figure, title: str, *, height: int = HEIGHT) -> None:
    """Set a chart's title and the style shared by all charts."""
    lines = wrapped(title, TITLE_LINE, most=2)
    more = LINE_HEIGHT * lines.count("<br>")
    figure.update_layout(
        title={"text": lines, "x": 0, "xanchor": "left", "font": {"size": 15}},
        height=height + more,
        margin={"l": 8, "r": 16, "t": 56 + more, "b": 8},
        hovermode="closest",
        legend={"orientation": "h", "y": 1, "yanchor": "bottom", "x": 1, "xanchor": "right"},
    )
    figure.update_xaxes(showgrid=False, zeroline=False, automargin=True, separatethousands=True)
    figure.update_yaxes(gridcolor=FAINT, zeroline=False, automargin=True, separatethousands=True)


def wrapped(text: str, width: int, *, most: int | None = None) -> str:
    """Return a text from people or files wrapped to `width` for Plotly, in at most `most` lines if given."""
    lines = textwrap.wrap(text, width, break_on_hyphens=False, max_lines=most, placeholder="…")
    return "<br>".join(Pen.text(line, width) for line in lines)


def legend_below(figure: go.Figure) -> None:
    """Move a legend that would run into the title to extra space below the chart."""
    figure.update_layout(
        height=figure.layout.height + 60,
        margin={"b": 84},
        legend={"yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "xanchor": "left"},
    )


def ticks_at(figure: go.Figure, places: Iterable[float]) -> None:
    """Set a tick of the horizontal axis at each place; places that grow by factors get a logarithmic axis."""
    at = sorted(set(places))
    is_growing = len(at) > 2 and at[0] > 0 and at[-1] / at[0] >= 8
    figure.update_xaxes(type="log" if is_growing else "linear", tickvals=at, ticktext=[exact(x) for x in at])


def bars(intervals: Sequence[Interval], scale: Scale, colour: str) -> dict[str, Any]:
    """Return intervals as thin error bars around their values."""
    return {
        "type": "data", "symmetric": False, "thickness": 1.4, "width": 0, "color": colour,
        "array": [(each.high - each.value) * scale.factor for each in intervals],
        "arrayminus": [(each.value - each.low) * scale.factor for each in intervals],
    }  # fmt: skip


def ramp(count: int, faintest: int = FAINTEST_LINE) -> list[str]:
    """Return `count` colours of the blue ramp, the strongest last; a single colour is the accent.

    If `count` exceeds NUM_SHADES, some colours repeat.
    """
    if count <= 1:
        return [ACCENT] * count
    return [RAMP[round(faintest + (len(RAMP) - 1 - faintest) * place / (count - 1))] for place in range(count)]


def strokes(count: int, *, is_ordered: bool = True) -> list[tuple[str, str]]:
    """Return the colour and the marker of each of `count` lines; lines of the same colour have different markers.

    is_ordered: the lines are steps of one thing, in shades of one colour; else each is a thing of its own.
    """
    shades = ramp(count) if is_ordered else [COLOURS[place % len(COLOURS)] for place in range(count)]
    return [(shade, MARKS[shades[:place].count(shade) % len(MARKS)]) for place, shade in enumerate(shades)]


def beside(places: Sequence[float]) -> list[str]:
    """Return the side of each point for its text, so that the text stays on the chart: towards the middle."""
    middle = max(places, default=0.0) / 2
    return ["middle left" if place > middle else "middle right" for place in places]


def legend_text(cell: CellSummary, metric: str) -> str:
    """Return the hover text of a configuration."""
    interval, unit = cell.metrics[metric], METRICS_BY_NAME[metric].unit
    lines = [
        Pen.text(cell.label),
        f"<b>{quantity(interval.value, unit)}</b>",
        between(interval.low, interval.high, unit, interval.value),
    ]
    return "<br>".join(part for part in lines if part)


class Pen:
    """Draws configurations on a chart by one metric, in its most readable unit.

    If `is_lying`, values run to the right and configurations upwards.
    """

    def __init__(
        self, figure: go.Figure, run: RunRecord, metric: str, cells: Iterable[CellSummary], *, is_lying: bool = False
    ) -> None:
        self._figure, self._run, self._metric, self._is_lying = figure, run, metric, is_lying
        self._kinds = kinds_of(run.samples, ratios_of(run.samples, metric))
        self._is_counted = is_counted(run.samples)
        of_metric = METRICS_BY_NAME[metric]
        values = [cell.metrics[metric].value for cell in cells]
        self.scale = scale_of(of_metric.unit, max((value for value in values if math.isfinite(value)), default=0.0))
        title = f"{of_metric.label}, {self.scale.unit}" if self.scale.unit else of_metric.label
        if is_lying:
            figure.update_xaxes(title=title, showgrid=True, gridcolor=FAINT, rangemode="tozero")
        else:
            figure.update_yaxes(title=title, rangemode="tozero")

    def line(
        self,
        points: Sequence[Point],
        colour: str,
        name: str = "",
        *,
        marks: Sequence[str] = (),
        symbol: str = MARKS[0],
        is_joined: bool = True,
    ) -> None:
        """Draw medians as dots with their intervals as thin bars, joined or not; `marks` is a text at each point."""
        self._figure.add_scatter(
            **self._placed([point.x for point in points], self._scaled(point.y.value for point in points)),
            **{"error_x" if self._is_lying else "error_y": bars([point.y for point in points], self.scale, colour)},
            name=self.text(name),
            mode="+".join(["lines"] * is_joined + ["markers"] + ["text"] * bool(marks)),
            text=[self.text(mark) for mark in marks] or None,
            textposition="top center" if is_joined else beside([point.x for point in points]),
            marker={"color": colour, "size": 8, "symbol": symbol},
            line={"color": colour, "width": 2},
            hovertext=[legend_text(point.cell, self._metric) for point in points],
            hoverinfo="text",
            showlegend=bool(name),
            cliponaxis=False,
        )

    def dots(self, points: Sequence[Point], colour: str) -> None:
        """Draw the samples behind the medians, each kind with its own mark; skipped if there are over MOST_DOTS.

        The legend names the kinds other than steady ones.
        """
        samples, named = self._run.samples, {trace.name for trace in self._figure.data}
        if len(samples) > MOST_DOTS:
            return
        for number, kind in enumerate(KINDS):
            is_kind, mark = self._kinds == number, MARKS_OF[kind]
            places: list[float] = []
            values: list[float] = []
            for point in points:
                chosen = samples[self._metric][is_kind & (samples["cell"] == point.cell.number)]
                places += [point.x] * len(chosen)
                values += self._scaled(chosen.tolist())
            if not values:
                continue
            is_steady, is_own = kind == "steady", mark.colour == ACCENT
            name = "" if is_steady else mark.legend_name(is_counted=bool(self._is_counted[is_kind].any()))
            self._figure.add_scatter(
                **self._placed(places, values), mode="markers", opacity=0.35 if is_steady else 0.9, hoverinfo="skip",
                marker={"color": colour if is_own else GREY, "size": 5 if is_steady else 7, "symbol": mark.symbol},
                name=name, showlegend=bool(name) and name not in named, legendrank=AFTER_LINES,
            )  # fmt: skip

    def role(self, point: Point, words: str, *, is_above: bool) -> None:
        """Ring a point and name its role above or below it, such as "control"."""
        self._figure.add_scatter(
            **self._placed([point.x], self._scaled([point.y.value])), mode="markers+text", text=[self.text(words)],
            textposition="top center" if is_above else "bottom center", hoverinfo="skip", showlegend=False,
            marker={"color": GREY, "size": 17, "symbol": "circle-open", "line": {"width": 1.6}}, cliponaxis=False,
        )  # fmt: skip

    def name_places(self, names: Sequence[str]) -> None:
        """Label the axis with the names of configurations at places 0, 1, 2, ..."""
        self._figure.update_yaxes(
            tickvals=list(range(len(names))), ticktext=[self.text(name) for name in names], showgrid=False,
            range=[-0.6, len(names) - 0.4],
        )  # fmt: skip

    @staticmethod
    def text(text: str, limit: int = LONGEST_TEXT) -> str:
        """Escape text of people and files for Plotly, which interprets some HTML: one line, cut to `limit`."""
        shown = "".join(character if character.isprintable() else "\ufffd" for character in text)
        return html.escape(shown if len(shown) <= limit else shown[: limit - 1] + "…", quote=False)

    def _placed(self, places: list[float], values: list[float]) -> dict[str, Any]:
        return {"x": values, "y": places} if self._is_lying else {"x": places, "y": values}

    def _scaled(self, values: Iterable[float]) -> list[float]:
        return [value * self.scale.factor for value in values]
