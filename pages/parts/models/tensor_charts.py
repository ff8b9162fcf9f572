"""Charts of a model's bytes by tensor type and tensor group."""

from collections.abc import Sequence

import plotly.graph_objects as go

from engine.models import TensorGroup
from engine.units import counted, digits, quantity, scale_of
from pages.parts.benchmark.chart_pen import ACCENT, HEIGHT, Pen, blank

MOST_BARS, FEWEST_ROWS = 16, 5
LABEL_CHARACTERS = 32
ROOM = 1.2
"""Width of the chart relative to the longest bar, leaving room for its label."""


def types(groups: Sequence[TensorGroup]) -> go.Figure:
    """Draw bytes by the type that tensors are stored in."""
    total = sum(group.num_bytes for group in groups)
    bits = 8 * total / max(sum(group.num_values for group in groups), 1)
    return _bars(groups, f"{groups[0].name} holds {_share(groups[0], total)}; {digits(bits)} bits per value on average")


def largest(groups: Sequence[TensorGroup]) -> go.Figure:
    """Draw bytes by the function of tensors, all layers together; only the largest groups."""
    total = sum(group.num_bytes for group in groups)
    left_out = f"; {len(groups) - MOST_BARS:,} smaller ones are in the table" if len(groups) > MOST_BARS else ""
    return _bars(groups[:MOST_BARS], f"{groups[0].name} holds {_share(groups[0], total)}{left_out}")


def _share(group: TensorGroup, total: int) -> str:
    return f"{quantity(group.num_bytes / max(total, 1), '')} of the weights"


def _bars(groups: Sequence[TensorGroup], title: str) -> go.Figure:
    """Draw a bar for each group, the largest on top."""
    shown = list(reversed(groups))
    scale = scale_of("B", max(group.num_bytes for group in shown))
    figure = blank(title, scale.unit, height=max(HEIGHT, 96 + 26 * len(shown)))
    figure.add_bar(
        x=[group.num_bytes * scale.factor for group in shown], y=list(range(len(shown))), orientation="h",
        marker={"color": ACCENT}, cliponaxis=False, showlegend=False,
        text=[quantity(group.num_bytes, "B") for group in shown], textposition="outside",
        hovertext=[_hover(group) for group in shown], hoverinfo="text",
    )  # fmt: skip
    figure.update_xaxes(showgrid=False, range=[0, ROOM * groups[0].num_bytes * scale.factor])
    top = len(shown) - 0.4
    figure.update_yaxes(
        tickvals=list(range(len(shown))), ticktext=[Pen.text(group.name, LABEL_CHARACTERS) for group in shown],
        showgrid=False, range=[min(-0.6, top - FEWEST_ROWS), top],
    )  # fmt: skip
    figure.update_layout(bargap=0.35)
    return figure


def _hover(group: TensorGroup) -> str:
    """Return the hover text of a group."""
    lines = [
        f"<b>{Pen.text(group.name)}</b>",
        f"{quantity(group.num_bytes, 'B')}, {counted(group.num_tensors, 'tensor')}",
        f"{group.num_values:,} values of {digits(group.bits_per_value)} bits",
        Pen.text(", ".join(group.types)),
    ]
    return "<br>".join(lines)
