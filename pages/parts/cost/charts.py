"""Charts of a job's cost: tokens per dollar, time against money, and the lengths of real documents."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from engine.cost import PROVENANCES, Counted, Estimate, Provenance, Way, fastest_first
from engine.cost.rates import begun
from engine.stats import Interval
from engine.units import HOUR_S, Scale, counted, digits, dollars, scale_of, time_taken
from pages.parts.benchmark.chart_pen import ACCENT, GREY, HEIGHT, Pen, bars, blank, legend_below, ramp
from pages.parts.cost import name_places

MOST_BARS, FEWEST_ROWS, MOST_TIMES = 40, 5, 12
MOST_NAMED = 12
MOST_BINS = 60
WAYS: dict[Way, str] = {"notes": "one rate for all tokens", "apart": "separate prompt rate"}
"""Ways of counting in words."""

_AS_IT_IS = Scale(1, "")
_PATTERNS: dict[Provenance, str] = {"measured here": "", "imported": "", "noted": "", "assumed": "/"}


def per_dollar(estimates: Sequence[Estimate]) -> go.Figure:
    """Draw thousands of generated tokens per dollar, the most on top; colour and hatching show provenance."""
    ranked = sorted(
        (one for one in estimates if math.isfinite(one.ktokens_per_usd.value)),
        key=lambda one: one.ktokens_per_usd.value,
    )
    shown = ranked[-MOST_BARS:]
    best = shown[-1]
    left_out = f"; {len(ranked) - len(shown):,} more are in the table" if len(ranked) > len(shown) else ""
    figure = blank(
        begun(f"{name(best, shown)} gives the most tokens per dollar{left_out}"), "ktokens generated per $",
        height=max(HEIGHT, 96 + 28 * len(shown)),
    )  # fmt: skip
    for provenance, colour in zip(PROVENANCES, reversed(ramp(len(PROVENANCES))), strict=True):
        rows = [(place, one) for place, one in enumerate(shown) if one.rate.generation.provenance == provenance]
        if rows:
            _bars(figure, rows, shown, provenance, colour)
    figure.update_xaxes(showgrid=False, rangemode="tozero")
    top = len(shown) - 0.4
    figure.update_yaxes(
        tickvals=list(range(len(shown))), ticktext=[Pen.text(name(one, shown), 40) for one in shown], showgrid=False,
        range=[min(-0.6, top - FEWEST_ROWS), top],
    )  # fmt: skip
    figure.update_layout(bargap=0.35, showlegend=True)
    legend_below(figure)
    return figure


def _bars(
    figure: go.Figure, rows: list[tuple[int, Estimate]], shown: Sequence[Estimate], provenance: Provenance, colour: str
) -> None:
    intervals = [one.ktokens_per_usd for _, one in rows]
    figure.add_bar(
        x=[interval.value for interval in intervals],
        y=[place for place, _ in rows],
        error_x=bars(intervals, _AS_IT_IS, GREY),
        orientation="h", name=provenance, cliponaxis=False,
        marker={"color": colour, "pattern": {"shape": _PATTERNS[provenance]}},
        text=[_ktokens(one) for _, one in rows], textposition="outside",
        hovertext=[_hover(one, shown) for _, one in rows], hoverinfo="text",
    )  # fmt: skip


def _ktokens(one: Estimate) -> str:
    """Return the figure, followed by the noted one if it differs."""
    measured, noted = digits(one.ktokens_per_usd.value), one.rate.noted_ktokens_per_usd
    return measured if noted is None or digits(noted) == measured else f"{measured} (noted {digits(noted)})"


def times(estimates: Sequence[Estimate]) -> go.Figure:
    """Draw the time of each configuration, the fastest on top, with its cost where that is known.

    At least one time must be known.
    """
    ranked = [one for one in fastest_first(estimates) if math.isfinite(one.hours.value)]
    shown = ranked[:MOST_TIMES][::-1]
    is_alone = len({one.rate.machine for one in shown}) == 1
    names = [one.rate.label if is_alone else name(one, shown) for one in shown]
    scale = scale_of("h", shown[0].hours.value)
    left_out = f"; {len(ranked) - len(shown):,} more are in the table" if len(ranked) > len(shown) else ""
    figure = blank(
        begun(f"{names[-1]} is the fastest: {as_time(shown[-1].hours.value)}{left_out}"), f"time, {scale.unit}",
        height=max(HEIGHT // 2, 96 + 28 * len(shown)),
    )  # fmt: skip
    intervals, places = [one.hours for one in shown], list(range(len(shown)))
    figure.add_bar(
        x=[interval.value * scale.factor for interval in intervals], y=places, error_x=bars(intervals, scale, GREY),
        orientation="h", cliponaxis=False, marker={"color": ACCENT}, hovertext=[_hover(one, shown) for one in shown],
        hoverinfo="text",
    )  # fmt: skip
    figure.add_scatter(
        x=[np.fmax(interval.high, interval.value) * scale.factor for interval in intervals], y=places, mode="text",
        text=[" " + " · ".join(filter(None, (as_time(one.hours.value), _money(one)))) for one in shown],
        textposition="middle right", cliponaxis=False, hoverinfo="skip",
    )  # fmt: skip
    figure.update_xaxes(rangemode="tozero", showgrid=False)
    figure.update_yaxes(
        tickvals=places, ticktext=[Pen.text(each, 48) for each in names], showgrid=False,
        range=[-0.6, len(shown) - 0.4],
    )  # fmt: skip
    figure.update_layout(bargap=0.35, showlegend=False, margin={"r": 120})
    return figure


def time_and_money(
    ways: Mapping[Way, Sequence[Estimate]],
    chosen: Estimate | None,
    *,
    deadline_h: float | None = None,
    budget_usd: float | None = None,
) -> go.Figure:
    """Draw dollars against time: the first way filled, the other hollow, intervals as thin bars, goals dashed."""
    first = next(iter(ways))
    placed_first = [one for one in fastest_first(ways[first]) if _is_placed(one)]
    scale = scale_of("h", _longest(ways.values()))
    figure = blank(_finding(placed_first, chosen), f"time, {scale.unit}")
    for way, estimates in ways.items():
        placed = placed_first if way == first else list(filter(_is_placed, estimates))
        unplaced = "" if placed else f"{WAYS[way]}: somewhere on the line"
        _intervals(figure, estimates, scale, unplaced, is_filled=way == first)
        if placed:
            _points(figure, placed, scale, chosen, WAYS[way], is_filled=way == first)
    wanted = {"line": {"color": GREY, "dash": "dash", "width": 1.2}}
    label = {"font": {"color": GREY}, "textangle": 0, "textposition": "end"}
    if deadline_h is not None:
        figure.add_vline(x=deadline_h * scale.factor, label={"text": "deadline", **label}, **wanted)
    if budget_usd is not None:
        figure.add_hline(
            y=budget_usd, label={"text": "budget", "xanchor": "right", "yanchor": "bottom", **label}, **wanted
        )
    name_places.arrange(figure)
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(title="dollars", rangemode="tozero")
    figure.update_layout(showlegend=True)
    legend_below(figure)
    return figure


def _finding(estimates: list[Estimate], chosen: Estimate | None) -> str:
    if not estimates:
        return "No machine has both a speed and a price"
    best = chosen or estimates[0]
    return f"{begun(best.rate.place)}: {as_time(best.hours.value)} for {dollars(best.dollars.value)}"


def _longest(ways: Iterable[Iterable[Estimate]]) -> float:
    """Return the longest time on the chart, in hours, among estimates with a price."""
    hours = (one.hours for way in ways for one in way if one.price is not None)
    return max((value for interval in hours for value in interval[:3] if math.isfinite(value)), default=0.0)


def _is_placed(one: Estimate) -> bool:
    return math.isfinite(one.hours.value) and math.isfinite(one.dollars.value)


def _intervals(figure: go.Figure, estimates: Iterable[Estimate], scale: Scale, label: str, *, is_filled: bool) -> None:
    """Draw intervals as slanting bars, since time and money of a machine vary together; `label` is for the legend."""
    places: list[float | None] = []
    costs: list[float | None] = []
    for one in estimates:
        if math.isfinite(one.hours.low + one.dollars.low):
            places += [one.hours.low * scale.factor, one.hours.high * scale.factor, None]
            costs += [one.dollars.low, one.dollars.high, None]
    if places:
        figure.add_scatter(
            x=places, y=costs, mode="lines", hoverinfo="skip", showlegend=bool(label), name=label,
            line={"color": ACCENT if is_filled else GREY, "width": 1.4, "dash": "solid" if is_filled else "dot"},
        )  # fmt: skip


def _points(
    figure: go.Figure,
    placed: Sequence[Estimate],
    scale: Scale,
    chosen: Estimate | None,
    label: str,
    *,
    is_filled: bool,
) -> None:
    is_named = is_filled and len(placed) <= MOST_NAMED
    figure.add_scatter(
        x=[one.hours.value * scale.factor for one in placed],
        y=[one.dollars.value for one in placed],
        mode="markers+text" if is_named else "markers", name=label, cliponaxis=False,
        text=[Pen.text(name(one, placed), 40) for one in placed] if is_named else None,
        marker={
            "color": ACCENT if is_filled else GREY,
            "symbol": "circle" if is_filled else "circle-open",
            "size": [12 if one is chosen else 8 for one in placed],
        },
        hovertext=[_hover(one, placed) for one in placed], hoverinfo="text",
    )  # fmt: skip


def lengths(found: Counted) -> go.Figure:
    """Draw a histogram of tokens per document, with the mean, which the job uses, dashed."""
    tokens = np.array([document.num_tokens for document in found.documents])
    mean = float(tokens.mean())
    figure = blank(
        f"{counted(len(tokens), 'document')}, {digits(mean)} tokens each on average", "tokens per document",
        height=HEIGHT - 60,
    )  # fmt: skip
    figure.add_histogram(x=tokens, nbinsx=MOST_BINS, marker={"color": ACCENT}, hovertemplate="%{y} of %{x} tokens")
    figure.add_vline(x=mean, line={"color": GREY, "dash": "dash", "width": 1.2})
    figure.update_yaxes(title="documents")
    figure.update_layout(bargap=0.08)
    return figure


def name(one: Estimate, among: Iterable[Estimate]) -> str:
    """Return the machine's name, with the configuration if several of that machine are shown."""
    alike = [other.rate for other in among if other.rate.machine == one.rate.machine]
    return one.rate.place if len(alike) == 1 else f"{one.rate.place} · {one.rate.label}"


def as_time(hours: float) -> str:
    """Format a time given in hours: 2 h 10 min."""
    return time_taken(hours * HOUR_S)


def _hover(one: Estimate, shown: Iterable[Estimate]) -> str:
    """Return the hover text of an estimate."""
    speed = one.rate.generation
    lines = [
        f"<b>{Pen.text(name(one, shown))}</b>",
        " and ".join(filter(None, (as_time(one.hours.value), _money(one)))),
        _bounds(one.hours),
        f"{_ktokens(one)} ktokens per $" if one.price else "",
        f"{digits(speed.per_s.value)} tok/s, {speed.provenance}",
        Pen.text(one.rate.model),
        f"answers diverge by {digits(one.rate.divergence)} nats per token" if one.rate.divergence is not None else "",
    ]
    return "<br>".join(line for line in lines if line)


def _bounds(hours: Interval) -> str:
    return f"95 %: {as_time(hours.low)} to {as_time(hours.high)}" if math.isfinite(hours.low + hours.high) else ""


def _money(one: Estimate) -> str:
    return dollars(one.dollars.value) if math.isfinite(one.dollars.value) else ""
