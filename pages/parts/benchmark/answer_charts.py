"""Charts for two questions: how many users can be served, and where the time per token goes."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from engine.bench.analysis.capacity import Capacity
from engine.bench.analysis.time_breakdown import Part, TimeBreakdown
from engine.bench.measurement.token_parts import PARTS
from engine.bench.planning.plan import Objective
from engine.units import counted, percent, quantity, scale_of
from pages.parts.benchmark.chart_pen import (
    ACCENT,
    FAINTEST_AREA,
    GREY,
    HEIGHT,
    Pen,
    bars,
    blank,
    legend_below,
    ramp,
    style,
)


def users(found: Capacity, wanted: Objective) -> go.Figure:
    """Draw time to first token (top) and speed (bottom) by number of users: objective dashed, capacity dotted."""
    figure = make_subplots(2, 1, shared_xaxes=True, vertical_spacing=0.08)
    served = f"{'At least ' * found.is_at_least}{counted(found.users, 'user')} served within the objective"
    style(figure, served, height=HEIGHT + 80)
    rows = ((1, "ttft_s", wanted.ttft_s, "first token"), (2, "per_s", wanted.per_s, "per user"))
    places = [point.users for point in found.points]
    for row, name, limit, label in rows:
        intervals = [getattr(point, name) for point in found.points]
        unit = "s" if row == 1 else "tok/s"
        scale = scale_of(unit, max([limit, *(interval.value for interval in intervals)]))
        figure.add_scatter(
            x=places, y=[interval.value * scale.factor for interval in intervals], mode="lines+markers",
            marker={"color": ACCENT, "size": 8}, line={"color": ACCENT, "width": 2}, showlegend=False, cliponaxis=False,
            error_y=bars(intervals, scale, ACCENT), row=row, col=1,
            hovertext=[f"{x:,}: {quantity(each.value, unit)}" for x, each in zip(places, intervals, strict=True)],
            hoverinfo="text",
        )  # fmt: skip
        figure.add_hline(y=limit * scale.factor, line={"color": GREY, "dash": "dash", "width": 1.2}, row=row, col=1)
        figure.update_yaxes(title=f"{label}, {scale.unit}", rangemode="tozero", row=row, col=1)
    if found.users:
        figure.add_vline(x=found.users, line={"color": GREY, "dash": "dot", "width": 1.2})
    is_doubling = len(places) > 2 and places[-1] / places[0] >= 8
    figure.update_xaxes(type="log" if is_doubling else "linear", tickvals=places, ticktext=[f"{x:,}" for x in places])
    figure.update_xaxes(title="concurrent users", row=2, col=1)
    return figure


def time_breakdown(found: TimeBreakdown) -> go.Figure:
    """Draw one bar per way of calling llama.cpp: its time per token, split into stages from left to right."""
    slowest = max(found.bars, key=lambda bar: bar.seconds_per_token)
    fastest = min(found.bars, key=lambda bar: bar.seconds_per_token)
    scale = scale_of("s", slowest.seconds_per_token)
    title = f"{fastest.label}: {quantity(fastest.seconds_per_token, 's')} per token"
    if slowest is not fastest:
        title += f"; {slowest.label}: {quantity(slowest.seconds_per_token, 's')}"
    figure = blank(title, f"time per generated token, {scale.unit}", height=min(HEIGHT, 120 + 44 * len(found.bars)))
    labels = [Pen.text(bar.label) for bar in found.bars]
    for (part, words), colour in zip(PARTS.items(), ramp(len(PARTS), FAINTEST_AREA), strict=True):
        steps = [next(one for one in bar.parts if one.name == part) for bar in found.bars]
        if not any(step.seconds_per_token for step in steps):
            continue
        figure.add_bar(
            x=[step.seconds_per_token * scale.factor for step in steps], y=labels, orientation="h", name=part,
            marker={"color": colour},
            hovertext=[_hover(words, step) for step in steps],
            hoverinfo="text",
        )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.35, legend={"traceorder": "normal"})
    legend_below(figure)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure


def _hover(words: str, step: Part) -> str:
    return f"{words}<br>{quantity(step.seconds_per_token, 's')}, {percent(step.share, 1)}"
