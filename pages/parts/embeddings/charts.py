"""Charts of vectors: pairwise similarity of texts, and their positions on a two-dimensional map."""

from collections import Counter
from collections.abc import Sequence

import plotly.graph_objects as go

from engine.step_parts import Floats
from engine.units import quantity
from engine.workbench import similarity
from engine.workbench.similarity import Projection
from pages.parts.benchmark.chart_pen import ACCENT, COLOURS, GREY, Pen, blank, legend_below
from pages.parts.labels import one_line

HEIGHT, ROW_HEIGHT, MOST_NAMED = 560, 15, 48
TITLED, SHORT, HOVERED = 22, 34, 110
OTHERS = "others"


def heat_map(texts: Sequence[str], vectors: Floats) -> go.Figure:
    """Draw the cosine of every pair of texts, similar ones adjacent; labelled if there is room."""
    alike = similarity.cosines(vectors)
    order = similarity.like_beside_like(alike)
    first, second, cosine = similarity.most_alike(alike)
    names = [f"{place + 1} · {Pen.text(texts[place], HOVERED)}" for place in order]
    figure = blank(
        f"Most alike, {cosine:.2f}: “{one_line(texts[first], TITLED)}” and “{one_line(texts[second], TITLED)}”", ""
    )
    figure.add_heatmap(
        x=names, y=names, z=alike[order][:, order], zmin=min(0.0, float(alike.min())), zmax=1.0, xgap=1, ygap=1,
        hovertemplate="%{y}<br>%{x}<br>cosine %{z:.3f}<extra></extra>",
        colorbar={"title": {"text": "cosine"}, "thickness": 10, "outlinewidth": 0},
    )  # fmt: skip
    is_named = len(texts) <= MOST_NAMED
    figure.update_layout(height=max(HEIGHT, 90 + ROW_HEIGHT * len(texts)) if is_named else HEIGHT)
    figure.update_xaxes(type="category", showticklabels=False, ticks="")
    figure.update_yaxes(
        type="category", autorange="reversed", showgrid=False, showticklabels=is_named, tickvals=names,
        ticktext=[Pen.text(texts[place], SHORT) for place in order], tickfont={"size": 11},
    )  # fmt: skip
    return figure


def text_map(texts: Sequence[str], groups: Sequence[str], projection: Projection, chosen: int) -> go.Figure:
    """Draw texts along the two directions in which they differ most, coloured by group; the chosen one is ringed."""
    share = float(projection.shares.sum())
    figure = blank(f"This map preserves {quantity(share, '')} of the variation", "first direction", height=HEIGHT)
    x, y = projection.points[:, 0], projection.points[:, 1]
    shown = _shown(groups) or [""] * len(texts)
    for name, colour in zip(dict.fromkeys(shown), COLOURS, strict=False):
        places = [place for place, group in enumerate(shown) if group == name]
        figure.add_scatter(
            x=x[places], y=y[places], mode="markers", name=Pen.text(name, 24), showlegend=bool(groups),
            marker={"color": GREY if name == OTHERS else colour, "size": 9, "opacity": 0.85}, cliponaxis=False,
            hovertext=[f"{place + 1} · {Pen.text(texts[place], HOVERED)}" for place in places], hoverinfo="text",
            customdata=[str(place + 1) for place in places], unselected={"marker": {"opacity": 0.85}},
        )  # fmt: skip
    figure.add_scatter(
        x=x[[chosen]], y=y[[chosen]], mode="markers", showlegend=False, hoverinfo="skip", cliponaxis=False,
        marker={"symbol": "circle-open", "size": 17, "color": ACCENT, "line": {"width": 2.5}},
    )  # fmt: skip
    if groups:
        legend_below(figure)
    figure.update_yaxes(title="second direction", scaleanchor="x")
    return figure


def _shown(groups: Sequence[str]) -> list[str]:
    """Return the group that each text is shown as; the rarest become "others" if there are more groups than colours."""
    counts = Counter(groups)
    if len(counts) <= len(COLOURS):
        return list(groups)
    named = {name for name, _count in counts.most_common(len(COLOURS) - 1)}
    return [name if name in named else OTHERS for name in groups]
