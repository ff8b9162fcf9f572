"""Charts in an offline HTML file, light or dark as the reader's system."""

from pathlib import Path
from typing import Any

import msgspec
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from pages.parts import chart_colours
from pages.parts.benchmark.chart_pen import COLOURS, RAMP
from pages.parts.offline_file import json_block, option

SCRIPT = Path(__file__).with_name("offline_charts.js")
LAYOUT = {"template": "none", "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}


def chart(figure: go.Figure) -> str:
    """Return an element with the chart, which the scripts draw."""
    made = go.Figure(figure).update_layout(LAYOUT)
    return f"{json_block(msgspec.Raw(made.to_json().encode()), 'figure', attribute='class')}<div></div>"


def themes() -> str:
    """Return an element with each theme's replacement for every colour that charts are drawn with, for the scripts."""
    found: dict[str, Any] = {}
    for theme in chart_colours.THEMES:
        own = chart_colours.of_theme(theme)
        found[theme] = {"colours": dict(zip([*COLOURS, *RAMP], own, strict=False)), "text": option(theme, "textColor")}
    return json_block(found, "themes")


def scripts() -> tuple[str, ...]:
    """Return the scripts that draw the charts; their file needs inline styles, which Plotly makes."""
    return get_plotlyjs(), SCRIPT.read_text("utf-8")
