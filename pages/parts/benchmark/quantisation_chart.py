"""Chart of all quantisations of a model: speed and divergence by file size."""

import math

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from engine.bench.analysis.quantisations import QuantisationFigures, Quantisations
from engine.samples import METRICS_BY_NAME
from engine.units import counted, digits, quantity, scale_of
from pages.parts.benchmark.chart_pen import ACCENT, GREY, HEIGHT, Pen, bars, legend_below, strokes, style, wrapped

LINE = 120
"""Characters per line of the title."""


def quantisations(found: Quantisations) -> go.Figure:
    """Draw speed at each number of sequences (top) and KL divergence from the original (bottom), by file size."""
    files = sorted((file for file in found.files if math.isfinite(file.size.num_bytes)), key=_size)
    figure = make_subplots(2, 1, shared_xaxes=True, vertical_spacing=0.1, row_heights=[0.62, 0.38])
    style(figure, "", height=HEIGHT + 200)
    subtitle = {"text": wrapped(found.batches, LINE), "font": {"size": 12, "color": GREY}}
    figure.update_layout(title={"text": wrapped(found.sentence, LINE), "subtitle": subtitle}, margin={"t": 120})
    scale = scale_of("B", max(map(_size, files), default=0.0))
    _draw_speeds(figure, found, files, scale.factor)
    measured = [file for file in files if math.isfinite(file.kl_mean)]
    figure.add_scatter(
        x=[_size(file) * scale.factor for file in measured], y=[file.kl_mean for file in measured],
        mode="markers+text", marker={"color": ACCENT, "size": 9}, showlegend=False, cliponaxis=False,
        text=[_name(file) for file in measured], textposition="top center", hoverinfo="text",
        hovertext=[f"{Pen.text(file.label)}<br>KL {digits(file.kl_mean)} nats per token" for file in measured],
        row=2, col=1,
    )  # fmt: skip
    figure.update_yaxes(title="KL, nats per token", rangemode="tozero", row=2, col=1)
    figure.update_xaxes(title=f"file size, {scale.unit}", row=2, col=1)
    legend_below(figure)
    return figure


def _draw_speeds(figure: go.Figure, found: Quantisations, files: list[QuantisationFigures], per_byte: float) -> None:
    """Draw a line for each number of sequences."""
    metric = METRICS_BY_NAME[found.metric]
    speeds = [interval.value for file in files for interval in file.speeds.values()]
    scale = scale_of(metric.unit, max(speeds, default=1.0))
    for number, (colour, symbol) in zip(found.sequences, strokes(len(found.sequences)), strict=True):
        own = [file for file in files if number in file.speeds]
        intervals = [file.speeds[number] for file in own]
        figure.add_scatter(
            x=[_size(file) * per_byte for file in own], y=[each.value * scale.factor for each in intervals],
            mode="lines+markers", name=counted(number, "sequence"), line={"color": colour, "width": 2},
            marker={"color": colour, "size": 8, "symbol": symbol}, error_y=bars(intervals, scale, colour),
            cliponaxis=False,
            hovertext=[
                f"{Pen.text(file.label)}<br><b>{quantity(each.value, metric.unit)}</b>"
                for file, each in zip(own, intervals, strict=True)
            ],
            hoverinfo="text", row=1, col=1,
        )  # fmt: skip
    figure.update_yaxes(title=f"{metric.label}, {scale.unit}", rangemode="tozero", row=1, col=1)


def _size(file: QuantisationFigures) -> float:
    return file.size.num_bytes


def _name(file: QuantisationFigures) -> str:
    return Pen.text(file.size.quantisation or file.label)
