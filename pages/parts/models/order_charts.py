"""Charts of two models loaded in turn: the time of each load, and the share of each left in memory."""

import math

import plotly.graph_objects as go

from engine.bench.measurement.load_order import LoadOrder, LoadStep
from engine.units import quantity, scale_of
from pages.parts.benchmark.chart_pen import ACCENT, Pen, blank, legend_below, ramp

LOADS = ("A", "B", "A again")
MOMENTS = ("before", *(f"after {name}" for name in LOADS))
PARTS = {"load_s": "loading", "first_token_s": "to the first token"}


def times(order: LoadOrder) -> go.Figure:
    """Draw the seconds of each load, and from there to the first token."""
    first, _second, third = order.steps
    figure = blank(f"A loaded in {quantity(first.load_s, 's')}, then in {quantity(third.load_s, 's')}", "")
    scale = scale_of("s", max(step.load_s + step.first_token_s for step in order.steps))
    for (part, name), colour in zip(PARTS.items(), reversed(ramp(len(PARTS))), strict=True):
        figure.add_bar(
            x=LOADS, y=[getattr(step, part) * scale.factor for step in order.steps], name=name,
            marker={"color": colour}, hoverinfo="text",
            hovertext=[f"{_file(order, step)}<br>{name}: {quantity(getattr(step, part), 's')}" for step in order.steps],
        )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.45)
    figure.update_yaxes(title=scale.unit, rangemode="tozero")
    legend_below(figure)
    return figure


def shares(order: LoadOrder) -> go.Figure:
    """Draw the share of either model in the page cache, before and after each load."""
    figure = blank(_title(order.left), "")
    moments = [order.steps[0].before, *(step.after for step in order.steps)]
    for name, path, colour in (("A", order.a, ACCENT), ("B", order.b, ramp(3)[0])):
        values = [100 * moment[name] for moment in moments]
        figure.add_bar(
            x=MOMENTS, y=values, name=name, marker={"color": colour}, hoverinfo="text",
            hovertext=[f"{Pen.text(path.name)}<br>{quantity(value / 100, '')} in memory" for value in values],
        )  # fmt: skip
    figure.update_layout(barmode="group", bargap=0.35)
    figure.update_yaxes(title="in memory, %", range=[0, 105])
    legend_below(figure)
    return figure


def _title(left: float) -> str:
    if math.isnan(left):
        return "This system does not report the page cache"
    return f"{quantity(left, '')} of A was still in memory after B"


def _file(order: LoadOrder, step: LoadStep) -> str:
    return Pen.text((order.a if step.name == "A" else order.b).name)
