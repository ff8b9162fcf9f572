"""Label placement for the points of a chart, so that labels cover no dot, no other label and few lines."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

PLACES = {
    "top center": (0, 1), "bottom center": (0, -1), "middle right": (1, 0), "middle left": (-1, 0),
    "top right": (1, 1), "top left": (-1, 1), "bottom right": (1, -1), "bottom left": (-1, -1),
}  # fmt: skip
"""Plotly's text positions, with the side of the point that the text is on, across and upwards."""

WIDTH, HEIGHT = 370.0, 215.0
"""Size of the narrowest plot in pixels; a wider one has its points farther apart."""

CHARACTER, LINE, DOT, MARGIN = 5.4, 12.0, 6.0, 16.0
SAMPLES = 60
ON_DOT, ON_NAME, CUT = 100, 100, 1000

Array = npt.NDArray[np.float64]
Segment = tuple[float, float, float, float]


def arrange(figure: go.Figure) -> None:
    """Place the labels of the points of a chart whose axes start at 0."""
    lines = list(_lines(figure))
    for trace in figure.data:
        if trace.text is not None:
            trace.textposition = places(trace.text, trace.x, trace.y, lines)


def _lines(figure: go.Figure) -> Iterator[Segment]:
    """Yield the segments drawn as lines, and lines that cross the whole chart."""
    highest = max((value for trace in figure.data for value in trace.y if value is not None), default=0.0)
    longest = max((value for trace in figure.data for value in trace.x if value is not None), default=0.0)
    for trace in figure.data:
        if trace.mode == "lines":
            ends = zip(trace.x, trace.y, strict=True)
            yield from ((*one, *other) for one, other in pairwise(ends) if None not in (*one, *other))
    for shape in figure.layout.shapes:
        if shape.x0 == shape.x1:
            yield shape.x0, 0.0, shape.x0, highest
        else:
            yield 0.0, shape.y0, longest, shape.y0


def places(names: Sequence[str], x: Sequence[float], y: Sequence[float], lines: Sequence[Segment]) -> list[str]:
    """Choose a position for each label, the first that covers least; `lines` are segments from x, y to x, y."""
    dots = np.column_stack([x, y]).astype(np.float64)
    ends = np.array(lines, np.float64).reshape(-1, 2, 2)
    scale = np.array([WIDTH, HEIGHT]) / np.maximum(np.concatenate([dots, ends.reshape(-1, 2)]).max(0), 1e-12) / 1.05
    dots, ends = dots * scale, ends * scale
    share = np.linspace(0, 1, SAMPLES)[:, None, None]
    samples = ends[:, 0] * (1 - share) + ends[:, 1] * share
    chosen: list[str] = []
    taken: list[Array] = []
    for name, dot in zip(names, dots, strict=True):
        boxes = {place: box(name, dot, *side) for place, side in PLACES.items()}
        costs = {place: _cost(box, dots, taken, samples) for place, box in boxes.items()}
        best = min(costs, key=costs.__getitem__)
        chosen.append(best)
        taken.append(boxes[best])
    return chosen


def box(name: str, dot: Array, across: int, upwards: int) -> Array:
    """Return the lower left and upper right corner of a label beside its point."""
    half = np.array([CHARACTER * len(name), LINE]) / 2
    away = np.array([across * (half[0] + DOT), upwards * (half[1] + DOT)])
    return np.stack([dot + away - half, dot + away + half])


def _cost(box: Array, dots: Array, taken: Sequence[Array], samples: Array) -> int:
    """Return the cost of a label in this box: how much it covers, and whether it is cut off."""
    on_dots = int((np.abs(dots - box.mean(0)) < (box[1] - box[0] + DOT) / 2).all(-1).sum())
    on_names = sum(bool((box[0] < other[1]).all() and (other[0] < box[1]).all()) for other in taken)
    on_lines = int(((samples > box[0]) & (samples < box[1])).all(-1).any(0).sum())
    is_cut = bool(box[1, 0] > WIDTH + MARGIN or box[0, 0] < 0 or box[0, 1] < 0)
    return ON_DOT * on_dots + ON_NAME * on_names + on_lines + CUT * is_cut
