"""Charts of compared runs under tabs; the open tab and the axes of the scatter chart are in the URL."""

from collections.abc import Callable, Sequence

import plotly.graph_objects as go
import streamlit as st

from engine.bench.analysis.comparison import Comparison
from engine.bench.analysis.entries import label_of
from engine.samples import METRICS_BY_NAME
from pages.parts import address
from pages.parts.benchmark import charts
from pages.parts.compare import run_figures, run_pen
from pages.parts.compare.run_scatter import Axes, scatter
from pages.parts.labels import one_line

KEY = "compare_chart"
SCATTER = "Scatter"
ON_REQUEST = "Parallel coordinates"
NOTHING = "none"
LINEAR, LOGARITHMIC = SCALES = ("linear", "logarithmic")
Make = Callable[[], go.Figure]


def show(comparison: Comparison) -> None:
    """Draw one of the charts, chosen by tabs; only the open one is made."""
    axes = axes_of(comparison)
    found = available(comparison, axes)
    asked = st.query_params.get("chart")
    opened = address.bound("chart", KEY, asked if asked in found else SCATTER)
    for name, tab in zip(found, st.tabs(list(found), **opened), strict=True):
        if tab.open:
            with tab:
                if name == SCATTER:
                    _choose_axes(comparison, axes)
                charts.draw(found[name](), f"{KEY}_{name}")


def figures(comparison: Comparison, axes: Axes) -> list[go.Figure]:
    """Return the charts for an exported file: those on the screen, except the one made on request."""
    return [make() for name, make in available(comparison, axes).items() if name != ON_REQUEST]


def available(comparison: Comparison, axes: Axes) -> dict[str, Make]:
    """Return chart factories by tab name."""
    found: dict[str, Make] = {
        SCATTER: lambda: scatter(comparison, axes),
        "Samples": lambda: run_figures.samples(comparison),
    }
    metrics = run_figures.front_metrics(comparison)
    if metrics:
        found["Front"] = lambda: run_figures.front(comparison, metrics)
    if len(run_pen.having(comparison, comparison.main_metric)) > 1:
        found[ON_REQUEST] = lambda: run_figures.parallel(comparison)
    return found


def axes_of(comparison: Comparison) -> Axes:
    """Return the axes in the URL, else defaults from the settings that differ.

    By default, the numeric setting with the most values is the x axis, and another setting gives the colour.
    """
    differing = comparison.differing
    values = {name: run_pen.values_of(comparison.entries, name) for name in differing}
    numeric = [name for name in differing if all(map(run_pen.is_number, values[name]))]
    ranked = sorted(numeric, key=lambda name: -len(values[name])) or _across(comparison)
    x = _asked("x", _across(comparison), ranked[0])
    other = next((name for name in differing if name != x), NOTHING)
    colour, panel = _asked("colour", _by(comparison), other), _asked("panel", _by(comparison), NOTHING)
    is_log = _asked("scale", SCALES, LINEAR) == LOGARITHMIC
    return Axes(x, "" if colour == NOTHING else colour, "" if panel == NOTHING else panel, is_log)


def _asked(name: str, options: Sequence[str], default: str) -> str:
    value = st.query_params.get(name)
    return value if value is not None and value in options else default


def _choose_axes(comparison: Comparison, axes: Axes) -> None:
    with st.container(horizontal=True, gap="small"):
        for name, label, options, value in (
            ("x", "X axis", _across(comparison), axes.x),
            ("colour", "Colour by", _by(comparison), axes.colour or NOTHING),
            ("panel", "Panel by", _by(comparison), axes.panel or NOTHING),
            ("scale", "Scale", SCALES, LOGARITHMIC if axes.is_log else LINEAR),
        ):
            st.selectbox(label, options, width=180, format_func=_label, **address.bound(name, f"compare_{name}", value))


def _across(comparison: Comparison) -> list[str]:
    """Return the options for the x axis: the settings that differ (the model if none does), and every other metric."""
    metrics = [name for name in comparison.measured if name != comparison.main_metric]
    return [*(comparison.differing or ("model",)), *metrics]


def _by(comparison: Comparison) -> list[str]:
    return [NOTHING, *comparison.differing]


def _label(name: str) -> str:
    return METRICS_BY_NAME[name].label if name in METRICS_BY_NAME else one_line(label_of(name))
