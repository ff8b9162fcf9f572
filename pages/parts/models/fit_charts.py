"""Charts of a pool's memory: stacked, against the memory of this machine."""

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from engine.models.fit import FitRow, MachineMemory
from engine.units import counted, quantity, scale_of
from pages.parts.benchmark.chart_pen import GREY, blank, legend_below, ramp

PARTS = {"weights": "weights", "kv": "KV cache", "buffers": "buffers", "process": "processes"}

NEAR = 3
"""Largest factor between a line and the highest column: a higher line would flatten the columns.

Of free memory above that, a note at the upper edge says how far above it is.
"""

HEADROOM = 1.1
"""Height of the chart relative to the highest line or column."""


class Line(NamedTuple):
    """A horizontal line, in bytes, with its name and dashes; both are in the legend, where no column covers them."""

    name: str
    value: int
    dash: str


def over_context(rows: Sequence[FitRow], memory: MachineMemory) -> go.Figure:
    """Draw a column for each context length, at one number of sequences."""
    title = f"{counted(rows[0].sequences, 'sequence')}: {_up_to(rows, [f'{row.n_ctx:,} tokens' for row in rows])}"
    return _stacked(rows, [f"{row.n_ctx:,}" for row in rows], title, "tokens per sequence", memory)


def over_sequences(rows: Sequence[FitRow], memory: MachineMemory) -> go.Figure:
    """Draw a column for each number of sequences, at one context length."""
    title = f"{rows[0].n_ctx:,} tokens: {_up_to(rows, [counted(row.sequences, 'sequence') for row in rows])}"
    return _stacked(rows, [f"{row.sequences:,}" for row in rows], title, "sequences", memory)


def _up_to(rows: Sequence[FitRow], names: Sequence[str]) -> str:
    """Return the last column that fits, in words."""
    fitting = [name for row, name in zip(rows, names, strict=True) if row.fits]
    if len(fitting) == len(rows):
        return "all of these fit"
    return f"up to {fitting[-1]} fit" if fitting else "none of these fit"


def _stacked(
    rows: Sequence[FitRow], places: Sequence[str], title: str, x_title: str, memory: MachineMemory
) -> go.Figure:
    highest = max(row.total for row in rows)
    scale = scale_of("B", highest)
    figure = blank(title, x_title)
    colours = list(reversed(ramp(len(PARTS))))
    for (part, name), colour in zip(PARTS.items(), colours, strict=True):
        figure.add_bar(
            x=list(places), y=[getattr(row, part) * scale.factor for row in rows], name=name,
            marker={"color": colour}, hoverinfo="text", hovertext=[_hover(row, part) for row in rows],
        )  # fmt: skip
    free, most = _lines(memory)
    lines = [line for line in (free, most) if line.value <= NEAR * highest]
    top = HEADROOM * max([highest, *(line.value for line in lines)])
    for line in lines:
        figure.add_hline(
            y=line.value * scale.factor, line={"color": GREY, "dash": line.dash, "width": 1.4},
            name=_line_name(line), showlegend=True,
        )  # fmt: skip
    if memory.available > NEAR * highest:
        figure.add_annotation(
            text=f"↑ {_line_name(free)}, {memory.available / highest:,.0f} times the highest column", showarrow=False,
            xref="paper", x=0, xanchor="left", yref="paper", y=1, yanchor="bottom", font={"color": GREY},
        )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.3)
    figure.update_xaxes(type="category")
    figure.update_yaxes(title=scale.unit, range=[0, top * scale.factor])
    legend_below(figure)
    return figure


def _lines(memory: MachineMemory) -> tuple[Line, Line]:
    """Return the lines for free memory, and for the most that this process may use."""
    name, most = ("this machine", memory.total) if memory.limit is None else ("cgroup limit", memory.limit)
    return Line("free now", memory.available, "dash"), Line(name, most, "dot")


def _line_name(line: Line) -> str:
    return f"{line.name}: {quantity(line.value, 'B')}"


def _hover(row: FitRow, part: str) -> str:
    """Return the hover text of a part of a column."""
    return "<br>".join(
        [
            f"<b>{PARTS[part]} {quantity(getattr(row, part), 'B')}</b>",
            f"of {quantity(row.total, 'B')}: {'fits' if row.fits else 'does not fit'}",
            f"{counted(row.sequences, 'sequence')} of {row.n_ctx:,} tokens, {counted(row.instances, 'instance')}",
        ]
    )
